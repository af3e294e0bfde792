// Not a module: runs before the first paint, so that a chosen theme does not flash.
"use strict";
{
  const KEY = "headrace.theme";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem(KEY);
  } catch {
    // Storage may be forbidden; the choice then lasts as long as the page.
  }

  const isDark = () => (chosen ? chosen === "dark" : system.matches);

  const show = () => {
    if (chosen) root.dataset.theme = chosen;
    else delete root.dataset.theme;
    document.getElementById("theme")?.setAttribute("aria-checked", String(isDark()));
  };

  // A choice that equals the system's is none: from then on the page follows the system again.
  const flip = () => {
    const dark = !isDark();
    chosen = dark === system.matches ? null : dark ? "dark" : "light";
    try {
      if (chosen) localStorage.setItem(KEY, chosen);
      else localStorage.removeItem(KEY);
    } catch {
      // See above.
    }
    show();
  };

  show();
  system.addEventListener("change", show);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", flip);
    show();
  });
}
