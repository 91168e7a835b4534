// Sort the rows of each group by the clicked column; a second click turns the order.
for (const table of document.querySelectorAll("table.scores")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.addEventListener("click", () => {
    const rising = heading.ariaSort === "descending" || (column === 0 && heading.ariaSort !== "ascending");
    headings.forEach(other => other.removeAttribute("aria-sort"));
    heading.ariaSort = rising ? "ascending" : "descending";
    const key = row => row.cells[column].textContent.trim();
    const compare = (a, b) => column === 0 ? key(a).localeCompare(key(b)) : (parseFloat(key(a)) || 0) - (parseFloat(key(b)) || 0);
    for (const body of table.tBodies) {
      const rows = [...body.rows].slice(1).sort((a, b) => rising ? compare(a, b) : compare(b, a));
      body.append(...rows);
    }
  }));
}
