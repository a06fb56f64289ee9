document.addEventListener("DOMContentLoaded", () => {
  // Renders what arithmatex left as \( \) and \[ \].
  renderMathInElement(document.body, {
    delimiters: [
      { left: "\\(", right: "\\)", display: false },
      { left: "\\[", right: "\\]", display: true },
    ],
    throwOnError: false,
  });
  reveal();
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) prepare(table);
  new ResizeObserver(fit).observe(document.querySelector("article"));
  document.fonts.ready.then(fit);
});

// Members of a class are folded; a link to one opens them.
function reveal() {
  const member = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = member?.closest("details:not([open])");
  if (!fold) return;
  fold.open = true;
  reveal();
  member.scrollIntoView();
}
addEventListener("hashchange", reveal);

// Each cell gets the name of its column, which shows when the table is folded.
function prepare(table) {
  const names = [...table.querySelectorAll("thead th")];
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, index) => {
      if (index === 0 || !cell.textContent.trim() || !names[index]?.textContent.trim()) return;
      const label = document.createElement("span");
      label.className = "column";
      label.append(...names[index].cloneNode(true).childNodes, ": ");
      cell.prepend(label);
    });
  }
}

// A table that is wider than the page gets less room in its cells, and if that does not do, a paragraph for each row.
// A formula gets smaller letters, as small as can be read.
function fit() {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const frame = (table.closest(".md-typeset__scrollwrap") ?? table).parentElement;
    const room = frame.clientWidth - 2 * parseFloat(getComputedStyle(frame).paddingLeft);
    for (const fit of ["", "dense", "folded"]) {
      table.dataset.fit = fit;
      if (Math.max(table.offsetWidth, table.scrollWidth) <= room) break;
    }
  }
  for (const formula of document.querySelectorAll("div.arithmatex")) {
    formula.style.fontSize = "";
    const share = formula.clientWidth / formula.scrollWidth;
    if (share < 1) formula.style.fontSize = `${Math.max(0.6, share * 0.98)}em`;
  }
}
