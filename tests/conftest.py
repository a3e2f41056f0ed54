"""Shared set-up of the suite: quiet numerics on shared cores, and a Ctrl-C that is heard."""

import os
import signal
import threading

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("MPLBACKEND", "Agg")

# A shell has what it starts in the background ignore Ctrl-C, and the programs that tests start
# would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and (
    threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)
