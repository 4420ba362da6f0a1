// A click on the head of a column sorts its table; a second click reverses the order. Numbers come
// before words, and empty cells (–) last in both orders.
const number = (text) =>
  text === "∞" ? Infinity : parseFloat(text.replace(/^[≤≥<>~]\s*/, "").replaceAll(",", ""));

const compare = (one, two) => {
  const [first, second] = [number(one), number(two)];
  if (isNaN(first) && isNaN(second)) return one.localeCompare(two);
  if (isNaN(first) || isNaN(second)) return isNaN(first) ? 1 : -1;
  return first === second ? 0 : first < second ? -1 : 1;
};

for (const head of document.querySelectorAll(".md-content table:not([class]) th")) {
  head.style.cursor = "pointer";
  head.addEventListener("click", () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    for (const other of head.parentElement.children) other.ariaSort = null;
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    const body = head.closest("table").tBodies[0];
    const text = (row) => row.cells[head.cellIndex].textContent.trim();
    const empty = (row) => ["", "–"].includes(text(row));
    const order = (a, b) => empty(a) - empty(b) || sign * compare(text(a), text(b));
    body.append(...[...body.rows].sort(order));
  });
}
