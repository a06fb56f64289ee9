document.addEventListener("DOMContentLoaded", () => {
  // Renders what arithmatex left as \( \) and \[ \].
  renderMathInElement(document.body, {
    delimiters: [
      { left: "\\(", right: "\\)", display: false },
      { left: "\\[", right: "\\]", display: true },
    ],
    throwOnError: false,
  });
  // Where a page shows source, it is there to be read.
  for (const source of document.querySelectorAll("details.mkdocstrings-source")) source.open = true;
});
