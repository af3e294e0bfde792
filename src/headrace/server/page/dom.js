// The element with this id; every id that the scripts use is in index.html.
export const byId = (id) => document.getElementById(id);

// A new element with properties and children; strings become text, never markup.
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// A button that says for a moment that its work is done.
export function copyButton(text) {
  const button = make("button", { type: "button", className: "quiet", textContent: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copying is not allowed here";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}
