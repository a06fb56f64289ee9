// Runs within a page, with the palette to take, the minimum contrast, and the word for what scrolls sideways. Returns
// its faults, one line each.
const [palette, minContrast, scrolling, done] = arguments;

const faults = new Set();
const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
const excerpt = (text) => JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 60));
const named = (element) => element.tagName.toLowerCase() + (element.className?.baseVal ?? element.className ?? "").toString().trim().split(/\s+/).filter(Boolean).map((name) => "." + name).join("");

function colors(text) {
  const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
  return { r, g, b, a };
}

function over(above, below) {
  const mix = (x, y) => x * above.a + y * (1 - above.a);
  return { r: mix(above.r, below.r), g: mix(above.g, below.g), b: mix(above.b, below.b), a: 1 };
}

// Relative luminance and contrast as WCAG 2 defines them.
function luminance({ r, g, b }) {
  const [x, y, z] = [r, g, b].map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}

const grounds = new Map();

function ground(element) {
  if (!grounds.has(element)) grounds.set(element, behind(element));
  return grounds.get(element);
}

function behind(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const color = colors(getComputedStyle(at).backgroundColor);
    if (color.a > 0) layers.push(color);
    if (color.a === 1) break;
  }
  return layers.reverse().reduce((below, above) => over(above, below), { r: 255, g: 255, b: 255, a: 1 });
}

function contrast(element) {
  const below = ground(element);
  const [x, y] = [luminance(over(colors(getComputedStyle(element).color), below)), luminance(below)];
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
}

function scrolls(element) {
  for (let at = element; at && at !== document.body; at = at.parentElement) {
    if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(at).overflowX)) return true;
  }
  return false;
}

function checkImages() {
  for (const image of document.images) {
    if (!image.complete || image.naturalWidth === 0) faults.add(`image not shown: ${image.getAttribute("src")}`);
  }
}

function checkFormulas() {
  for (const element of document.querySelectorAll(".katex-error")) faults.add(`formula not read: ${excerpt(element.textContent)}`);
  for (const element of document.querySelectorAll(".arithmatex")) {
    if (!element.querySelector(".katex")) faults.add(`formula not rendered: ${excerpt(element.textContent)}`);
  }
}

function checkTexts() {
  const seen = new Set();
  const looks = new Set();
  const texts = document.createTreeWalker(document.querySelector("article") ?? document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const text = texts.currentNode.data;
    if (!text.trim() || element.closest("script, style, .katex, .headerlink, title, desc") || !shown(element)) continue;
    if (/\\[()[\]]|\$\$/.test(text) && !element.closest("code, pre")) faults.add(`formula left as it is: ${excerpt(text)}`);
    if (seen.has(element) || element.closest("svg")) continue;
    seen.add(element);
    const look = getComputedStyle(element).color + JSON.stringify(ground(element));
    if (looks.has(look)) continue;
    looks.add(look);
    const ratio = contrast(element);
    if (ratio < minContrast) faults.add(`hardly seen, contrast ${ratio.toFixed(1)}: ${excerpt(text)} in ${named(element)}`);
  }
}

function checkWidth() {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return;
  const wide = [...document.body.querySelectorAll("*")].filter(
    (element) => shown(element) && element.getBoundingClientRect().right > width + 1 && !scrolls(element.parentElement)
  );
  const first = wide.find((element) => !wide.some((other) => other !== element && element.contains(other))) ?? document.body;
  faults.add(`wider than the screen, ${document.documentElement.scrollWidth} of ${width}: ${named(first)} ${excerpt(first.textContent)}`);
}

// Code, tables and formulas that a reader must move sideways; the check allows a few of them.
function checkScrolling() {
  for (const element of document.querySelectorAll("article *")) {
    const hidden = element.scrollWidth - element.clientWidth;
    if (hidden > 1 && element.clientWidth > 0 && ["auto", "scroll"].includes(getComputedStyle(element).overflowX) && shown(element)) {
      faults.add(`${scrolling} by ${hidden}: ${named(element)} ${excerpt(element.textContent)}`);
    }
  }
}

async function look() {
  for (const image of document.images) image.loading = "eager";
  const choice = document.querySelector(`input[name=__palette][data-md-color-scheme=${palette}]`);
  if (choice && document.body.dataset.mdColorScheme !== palette) choice.click();
  await document.fonts.ready;
  await Promise.allSettled([...document.images].map((image) => image.decode()));
  // Colors change in a transition; it is over, not waited for.
  for (const animation of document.getAnimations()) animation.finish();
  await new Promise((resume) => requestAnimationFrame(() => requestAnimationFrame(resume)));
  if (choice && document.body.dataset.mdColorScheme !== palette) faults.add(`the palette ${palette} cannot be chosen`);
  checkImages();
  checkFormulas();
  checkTexts();
  checkWidth();
  checkScrolling();
}

look().then(
  () => done([...faults]),
  (error) => done([`the page could not be looked at: ${error}`])
);
