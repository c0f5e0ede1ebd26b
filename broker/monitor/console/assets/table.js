// A table that draws only the rows in sight, so that thousands cost nothing.
import { element } from "./format.js";

const ROW = 31; // pixels, as the style sheet has it
const SPARE = 8;

export class Table {
  // columns: {key, label, value(row) to sort by, show(row) -> text or Node, kind}
  constructor(columns, { open, sort, descending = false, seen = () => {} }) {
    this.columns = columns;
    this.open = open;
    this.sort = sort;
    this.descending = descending;
    this.seen = seen;
    this.rows = [];
    this.selected = -1;
    this.body = element("tbody");
    this.heads = columns.map((column) => element("th", {
      "data-key": column.key, scope: "col", class: column.kind, tabindex: 0,
      onclick: () => this.sortBy(column.key),
      onkeydown: (event) => event.key === "Enter" && (event.stopPropagation(), this.sortBy(column.key)),
    }, column.label));
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...this.heads)), this.body);
    this.node = element("div", { class: "scroll", tabindex: 0, onscroll: () => this.draw(), onkeydown: (e) => this.key(e) }, table);
  }

  sortBy(key) {
    this.descending = this.sort === key ? !this.descending : this.columns.find((c) => c.key === key).number === true;
    this.sort = key;
    this.fill(this.rows);
  }

  fill(rows) {
    const column = this.columns.find((one) => one.key === this.sort);
    const sign = this.descending ? -1 : 1;
    this.rows = [...rows].sort((a, b) => {
      const x = column.value(a), y = column.value(b);
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
    this.heads.forEach((head, at) => {
      if (this.columns[at].key === this.sort) head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.draw();
  }

  draw() {
    const height = this.node.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW) - SPARE);
    const last = Math.min(this.rows.length, first + Math.ceil(height / ROW) + 2 * SPARE);
    const shown = this.rows.slice(first, last);
    this.body.replaceChildren(space(first), ...shown.map((row, at) => this.row(row, first + at)), space(this.rows.length - last));
    this.seen(shown);
  }

  row(row, position) {
    return element("tr", {
      class: this.open ? "row" : "", "aria-selected": position === this.selected, onclick: () => this.open?.(row),
    }, ...this.columns.map((column) => element("td", { class: column.kind }, column.show(row))));
  }

  key(event) {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 15, PageUp: -15 }[event.key];
    if (step !== undefined) {
      this.selected = Math.min(this.rows.length - 1, Math.max(0, this.selected + step));
      const top = this.selected * ROW;
      if (top < this.node.scrollTop) this.node.scrollTop = top;
      if (top > this.node.scrollTop + this.node.clientHeight - 3 * ROW) this.node.scrollTop = top - this.node.clientHeight + 3 * ROW;
      this.draw();
      event.preventDefault();
      event.stopPropagation();
    } else if (event.key === "Enter" && this.rows[this.selected]) {
      this.open?.(this.rows[this.selected]);
    }
  }
}

function space(rows) {
  const cell = element("td", { colspan: 99 });
  cell.style.height = `${rows * ROW}px`;
  return element("tr", { class: "space", "aria-hidden": true }, cell);
}
