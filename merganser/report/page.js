// Sort the rows of each group by the clicked column; a second click turns the order. A click on a term explains it.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach(heading => {
    heading.tabIndex = 0;
    heading.addEventListener("keydown", event => event.key === "Enter" && event.target === heading && heading.click());
  });
  headings.forEach((heading, column) => heading.addEventListener("click", event => {
    if (event.target.closest(".term")) return;
    const words = column === 0 || heading.classList.contains("text");
    const rising = heading.ariaSort === "descending" || (words && heading.ariaSort !== "ascending");
    headings.forEach(other => other.removeAttribute("aria-sort"));
    heading.ariaSort = rising ? "ascending" : "descending";
    const key = row => row.cells[column].textContent.trim();
    const compare = (a, b) => words ? key(a).localeCompare(key(b)) : (parseFloat(key(a)) || 0) - (parseFloat(key(b)) || 0);
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter(row => !row.classList.contains("group"));
      body.append(...rows.sort((a, b) => rising ? compare(a, b) : compare(b, a)));
    }
  }));
}
// On paper nothing can be opened: print what is folded away.
const folded = [];
addEventListener("beforeprint", () => folded.push(...document.querySelectorAll("details:not([open])")) && folded.forEach(each => each.open = true));
addEventListener("afterprint", () => folded.splice(0).forEach(each => each.open = false));
