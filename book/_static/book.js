// Boxes that scroll sideways are stops of the keyboard, as long as there is something to scroll.
// The theme does so for code and for tables that Sphinx made; here are the rest.
(() => {
  const BOXES = [
    ".bd-article .math",
    '.bd-article mjx-container[display="true"]',
    ".bd-article div.cell_output",
    '.bd-article div.cell_output div[style*="overflow"]',
    ".bd-article figure.moving",
  ].join(", ");
  const mark = (box) => {
    if (box.matches("span.math")) {
      const formula = box.querySelector("mjx-container"), line = box.closest("p, li, dd, td, div");
      box.classList.toggle("long", Boolean(formula) && formula.getBoundingClientRect().width > line.clientWidth);
      if (!box.classList.contains("long")) return box.removeAttribute("tabindex");
    }
    if (box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible") box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  };
  const start = () => {
    const watch = new ResizeObserver((seen) => seen.forEach((entry) => mark(entry.target)));
    const boxes = [...document.querySelectorAll(BOXES)];
    boxes.forEach((box) => watch.observe(box));
    window.addEventListener("resize", () => boxes.forEach(mark));
  };
  window.addEventListener("load", () => Promise.resolve(window.MathJax?.startup?.promise).then(start));
})();
