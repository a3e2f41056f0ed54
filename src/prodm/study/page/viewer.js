// One image: int16 HU slices, windowed here, drawn at the shape of the anatomy.

const SCALE_BAR_MM = 10;
const WHEEL_STEP_PX = 40;
const WINDOW_HU_PER_PX = 2;
const SCROLL_PX_PER_SLICE = 14;

export class Viewer {
  constructor(canvas, label) {
    this.canvas = canvas;
    this.label = label;
    this.slice = document.createElement("canvas");
    this.voxels = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  show(voxels, shape, spacing, view) {
    Object.assign(this, { voxels, shape, spacing, view });
    const [, rows, columns] = shape;
    this.slice.width = columns;
    this.slice.height = rows;
    this.draw();
  }

  // Screen pixels per mm when the slice just fits.
  fit() {
    const [, rows, columns] = this.shape;
    const [, dy, dx] = this.spacing;
    return Math.min(this.canvas.clientWidth / (columns * dx), this.canvas.clientHeight / (rows * dy));
  }

  draw() {
    const { canvas, view } = this;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    if (!this.voxels) return;
    const [slices, rows, columns] = this.shape;
    const [, dy, dx] = this.spacing;
    const image = new ImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const first = view.slice * rows * columns;
    const low = view.level - view.width / 2;
    const gain = 255 / view.width;
    for (let n = 0; n < pixels.length; n += 1) {
      const grey = Math.max(0, Math.min(255, Math.round((this.voxels[first + n] - low) * gain)));
      pixels[n] = 0xff000000 | (grey << 16) | (grey << 8) | grey;
    }
    this.slice.getContext("2d").putImageData(image, 0, 0);

    const context = canvas.getContext("2d");
    const scale = this.fit() * view.zoom * ratio;
    const centreX = canvas.width / 2 + view.panX * scale;
    const centreY = canvas.height / 2 + view.panY * scale;
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "high";
    context.drawImage(
      this.slice,
      centreX - (columns * dx * scale) / 2,
      centreY - (rows * dy * scale) / 2,
      columns * dx * scale,
      rows * dy * scale,
    );
    this.annotate(context, scale, ratio);
    canvas.setAttribute(
      "aria-label",
      `${this.label}, slice ${view.slice + 1} of ${slices}, window ${view.width}, level ${view.level}`,
    );
  }

  annotate(context, scale, ratio) {
    const { width, height } = this.canvas;
    const pad = 8 * ratio;
    context.fillStyle = context.strokeStyle = "rgb(255 214 102 / 90%)";
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.shadowColor = "#000";
    context.shadowBlur = 3 * ratio;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillText("R", pad, height / 2);
    context.textAlign = "right";
    context.fillText("L", width - pad, height / 2);
    const bar = SCALE_BAR_MM * scale;
    context.lineWidth = 1.5 * ratio;
    context.beginPath();
    context.moveTo(width - pad - bar, height - pad);
    context.lineTo(width - pad, height - pad);
    context.stroke();
    context.fillText("10 mm", width - pad, height - pad - 9 * ratio);
    context.shadowBlur = 0;
  }
}

// Mouse, wheel and fingers on one image; `act` moves all images in step.
export function listen(canvas, viewer, tool, act) {
  const touches = new Map();
  let wheel = 0;
  let dragged = 0;
  let grip = null;

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) {
      act.zoom(Math.exp(-event.deltaY / 300));
      return;
    }
    const step = event.deltaMode === 0 ? WHEEL_STEP_PX : 1;
    wheel += event.deltaY;
    const slices = Math.trunc(wheel / step);
    if (slices === 0) return;
    wheel -= slices * step;
    act.scroll(event.deltaMode === 0 && Math.abs(event.deltaY) >= 100 ? Math.sign(slices) : slices);
  }, { passive: false });

  canvas.addEventListener("contextmenu", (event) => event.preventDefault());

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    touches.set(event.pointerId, event);
    dragged = 0;
    grip = touches.size === 2 ? spread(touches) : null;
  });

  canvas.addEventListener("pointermove", (event) => {
    const before = touches.get(event.pointerId);
    if (!before) return;
    touches.set(event.pointerId, event);
    const dx = event.clientX - before.clientX;
    const dy = event.clientY - before.clientY;
    const perMm = viewer.fit() * viewer.view.zoom;
    if (touches.size === 2 && grip) {
      const now = spread(touches);
      act.zoom(now.distance / grip.distance);
      act.pan((now.x - grip.x) / perMm, (now.y - grip.y) / perMm);
      grip = now;
      return;
    }
    const kind = event.shiftKey || event.buttons === 4 ? "pan" : tool();
    if (kind === "pan") act.pan(dx / perMm, dy / perMm);
    else if (kind === "window") act.window(dx * WINDOW_HU_PER_PX, dy * WINDOW_HU_PER_PX);
    else {
      dragged += dy;
      const slices = Math.trunc(dragged / SCROLL_PX_PER_SLICE);
      dragged -= slices * SCROLL_PX_PER_SLICE;
      if (slices) act.scroll(slices);
    }
  });

  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, (event) => {
      touches.delete(event.pointerId);
      grip = null;
    });
  }
}

function spread(touches) {
  const [a, b] = [...touches.values()];
  return {
    distance: Math.max(1, Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY)),
    x: (a.clientX + b.clientX) / 2,
    y: (a.clientY + b.clientY) / 2,
  };
}
