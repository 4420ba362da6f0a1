// Sorts and filters the tables of the site, the report and the ledger.
//
// A click on the head of a column, or Enter there, sorts the rows of each section of the table; a
// second one reverses the order. Numbers come before words, and empty cells (–) last in both
// orders. A long table has a field above it, which keeps the rows with all words that it contains.
const LONG = 12;
const EMPTY = ["", "–"];

const number = (text) =>
  text === "∞" ? Infinity : parseFloat(text.replace(/^[≤≥<>~]\s*/, "").replaceAll(",", ""));

const compare = (one, two) => {
  const [first, second] = [number(one), number(two)];
  if (isNaN(first) && isNaN(second)) return one.localeCompare(two);
  if (isNaN(first) || isNaN(second)) return isNaN(first) ? 1 : -1;
  return first === second ? 0 : first < second ? -1 : 1;
};

const sort = (table, head) => {
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  for (const other of head.parentElement.cells) other.ariaSort = null;
  head.ariaSort = sign > 0 ? "ascending" : "descending";
  const text = (row) => row.cells[head.cellIndex].textContent.trim();
  const empty = (row) => EMPTY.includes(text(row));
  const order = (a, b) => empty(a) - empty(b) || sign * compare(text(a), text(b));
  for (const body of table.tBodies) body.append(...[...body.rows].sort(order));
};

const filter = (table, field) => {
  const words = field.value.toLowerCase().split(/\s+/);
  for (const body of table.tBodies)
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
};

for (const table of document.querySelectorAll("table")) {
  // Cells over several columns hold prose about the rows around them, so these rows stay in place.
  if (!table.tHead || table.querySelector("tbody [colspan]")) continue;
  for (const head of [...table.tHead.rows].at(-1).cells) {
    head.tabIndex = 0;
    head.style.cursor = "pointer";
    head.addEventListener("click", () => sort(table, head));
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort(table, head));
  }
  if ([...table.tBodies].reduce((rows, body) => rows + body.rows.length, 0) < LONG) continue;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = field.ariaLabel = "Filter rows";
  field.className = "filter";
  field.addEventListener("input", () => filter(table, field));
  (table.closest(".md-typeset__scrollwrap, .scroll") ?? table).before(field);
}
