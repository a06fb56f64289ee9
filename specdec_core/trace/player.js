"use strict";
// Shows one step of a trace at a time, and the numbers of one of its tokens.
for (const figure of document.querySelectorAll(".specdec-trace:not([data-ready])")) {
  const all = (selector, within = figure) => [...within.querySelectorAll(selector)];
  const sections = all("section");
  const status = figure.querySelector(".now");
  let step = 0;
  let token = 0;

  const show = (nextStep, nextToken = 0) => {
    step = Math.max(0, Math.min(sections.length - 1, nextStep));
    sections.forEach((section, index) => (section.hidden = index !== step));
    const buttons = all("button", sections[step]);
    token = Math.max(0, Math.min(buttons.length - 1, nextToken));
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", index === token));
    all(".detail", sections[step]).forEach((detail, index) => (detail.hidden = index !== token));
    for (const part of all("[data-step]")) {
      const at = Number(part.dataset.step);
      part.classList.toggle("now-step", at === step);
      part.classList.toggle("later", at > step);
    }
    const words = sections[step].dataset.words;
    if (status.textContent !== words) status.textContent = words;
    for (const button of all("[data-go]")) {
      // Not `disabled`, which would take the focus away.
      const end = ["first", "back"].includes(button.dataset.go) ? 0 : sections.length - 1;
      button.setAttribute("aria-disabled", step === end);
    }
  };
  const go = {
    first: () => show(0),
    back: () => show(step - 1),
    forward: () => show(step + 1),
    last: () => show(sections.length - 1),
  };
  const keys = {
    Home: go.first,
    End: go.last,
    ArrowLeft: go.back,
    ArrowRight: go.forward,
    ArrowUp: () => show(step, token - 1),
    ArrowDown: () => show(step, token + 1),
  };

  figure.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    const inStep = event.target.closest("section");
    keys[event.key]();
    // A button in a step that is hidden now would lose the focus.
    if (inStep) (all("button", sections[step])[token] ?? figure.querySelector("[data-go]")).focus();
  });
  figure.addEventListener("click", (event) => {
    const at = event.target.closest("[data-go], [data-step], section button");
    if (!at) return;
    if (at.dataset.go) go[at.dataset.go]();
    else if (at.dataset.step) show(Number(at.dataset.step));
    else show(step, all("button", sections[step]).indexOf(at));
  });
  figure.dataset.ready = "";
  if (sections.length) show(0);
}
