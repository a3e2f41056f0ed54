"""Scans and masks on disk, as volumes: DICOM, NIfTI, NRRD and the COCA data set."""
