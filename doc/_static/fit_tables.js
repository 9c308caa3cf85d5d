// Fit a table that is wider than its page, as on a telephone: in smaller letters if these suffice,
// otherwise a row at a time: the row's name, then each figure under the heading of its column.

function labelCells(table) {
  const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, i) => (cell.dataset.heading = headings[i]));
  }
}

function fit(table) {
  const container = table.parentElement;
  if (container.clientWidth === 0) return; // hidden, in closed details
  table.classList.remove("small", "stacked");
  for (const way of ["small", "stacked"]) {
    if (table.scrollWidth <= container.clientWidth + 1) return;
    table.classList.add(way);
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const tables = [
    ...document.querySelectorAll(".bd-article table:has(thead):not(:has([colspan], [rowspan]))"),
  ];
  const fitAll = () => tables.forEach(fit);
  tables.forEach(labelCells);
  fitAll();
  document.fonts.ready.then(fitAll); // letters of another width
  window.addEventListener("resize", fitAll);
  document.querySelectorAll("details").forEach((each) => each.addEventListener("toggle", fitAll));
});
