// Line charts of the last minutes on a canvas; one per panel.
import { element } from "./format.js";

const KEPT = 150;

export class History {
  // series: names; values are appended together.
  constructor(names) {
    this.names = names;
    this.rows = [];
  }
  add(values) {
    this.rows.push({ at: Date.now(), values });
    if (this.rows.length > KEPT) this.rows.shift();
  }
}

// `step`: 2 for axes in powers of two, which bytes are counted in.
export function chart(history, format, label, step = 10) {
  const canvas = element("canvas", { role: "img", "aria-label": label });
  const legend = element("div", { class: "legend" });
  const box = element("div", {}, canvas, legend);
  box.draw = () => draw(canvas, legend, history, format, step);
  requestAnimationFrame(box.draw);
  return box;
}

// The next of 2, 4, 10, 20, 40, 100, ... or of 2, 4, 8, ...: half of it is a short number, too.
export function roundedUp(value, step) {
  if (step === 2) return 2 ** (Math.floor(Math.log2(value)) + 1);
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [2, 4, 10].find((one) => one * power > value);
}

function draw(canvas, legend, history, format, step) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return;
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colors = ["--series1", "--series2", "--series3"].map((name) => style.getPropertyValue(name).trim());
  const top = roundedUp(Math.max(1, ...history.rows.flatMap((row) => row.values)), step);
  pen.font = "11px system-ui";
  pen.fillStyle = style.getPropertyValue("--soft");
  pen.strokeStyle = style.getPropertyValue("--line");
  for (const part of [0, 0.5, 1]) {
    const y = 4 + (height - 8) * (1 - part);
    pen.beginPath();
    pen.moveTo(0, y);
    pen.lineTo(width, y);
    pen.stroke();
    if (part) pen.fillText(format(top * part), 2, y + 12);
  }
  history.names.forEach((_, series) => {
    pen.strokeStyle = colors[series];
    pen.lineWidth = 1.6;
    pen.beginPath();
    history.rows.forEach((row, position) => {
      const x = width - (history.rows.length - 1 - position) * (width / (KEPT - 1));
      const y = 4 + (height - 8) * (1 - row.values[series] / top);
      if (position) pen.lineTo(x, y);
      else pen.moveTo(x, y);
    });
    pen.stroke();
  });
  const last = history.rows.at(-1);
  legend.replaceChildren(...history.names.map((name, series) => {
    const mark = element("i");
    mark.style.background = colors[series];
    return element("span", {}, mark, `${name} ${last ? format(last.values[series]) : "–"}`);
  }));
}
