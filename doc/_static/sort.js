// Sort the rows of a table of figures by a click on a heading; a second click reverses the order.

const number = (cell) => parseFloat(cell.textContent.replaceAll(",", "").replace("−", "-"));

function makeSortable(table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  const numeric = headings.map((_, i) => {
    const filled = rows.map((row) => row.cells[i]).filter((cell) => cell?.textContent.trim());
    return filled.length > 0 && filled.every((cell) => !isNaN(number(cell)));
  });
  if (rows.length < 4 || !numeric.includes(true)) return;

  headings.forEach((heading, i) => {
    const compare = numeric[i]
      ? (a, b) => number(a) - number(b)
      : (a, b) => a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
    const sort = () => {
      const sign = heading.ariaSort === "ascending" ? -1 : 1;
      headings.forEach((each) => (each.ariaSort = "none"));
      heading.ariaSort = sign > 0 ? "ascending" : "descending";
      const isEmpty = (row) => !row.cells[i].textContent.trim(); // last, in either order
      const order = (a, b) =>
        isEmpty(a) - isEmpty(b) || (isEmpty(a) ? 0 : sign * compare(a.cells[i], b.cells[i]));
      body.append(...rows.toSorted(order));
    };
    heading.ariaSort = "none";
    heading.tabIndex = 0;
    heading.title = "Sort by this column";
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".bd-article table:has(thead):not(:has([colspan], [rowspan]))").forEach(makeSortable);
});
