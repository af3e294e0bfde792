// The page: panels, the message field, and the chat.
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { apiKey, startParameters } from "./parameters.js";
import { StatusView } from "./status.js";

const PANELS = ["parameters", "status"];
const STORED = "headrace.panel";
const narrow = matchMedia("(max-width: 56rem)");

const input = byId("input");
const chat = new Chat({ onState: showRunning, openKey: () => openPanel("parameters", "key") });
const status = new StatusView(showServer);

const NOTES = {
  chat: byId("empty-note").textContent,
  text: "This model has no chat template: it continues the text that you write.",
  locked: "This server wants an API key. Enter it under Parameters.",
  unreachable: "The server can’t be reached. The page looks for it again every few seconds.",
};

function showServer(answer, failure) {
  byId("empty-note").textContent = NOTES[failure ?? (answer.chat ? "chat" : "text")];
  if (answer) showModel(answer);
}

function showModel({ model, chat: hasTemplate, context }) {
  byId("model").textContent = model;
  byId("model").title = `${model}, up to ${context} tokens`;
  chat.model = model;
  chat.hasTemplate = hasTemplate;
}

function showRunning(isRunning) {
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  byId("empty").hidden = !chat.isEmpty;
  byId("new").disabled = chat.isEmpty;
  byId("send").disabled = !input.value.trim();
}

// Opens one panel and closes the other; null closes both. On a narrow window a panel covers the chat.
function openPanel(name, focus) {
  for (const each of PANELS) {
    byId(each).hidden = each !== name;
    byId(`open-${each}`).setAttribute("aria-expanded", String(each === name));
  }
  byId("main").inert = narrow.matches && name !== null;
  status.isOpen = name === "status";
  try {
    localStorage.setItem(STORED, name ?? "");
  } catch {
    // Storage may be forbidden; the panel is then closed at the next visit.
  }
  if (focus) byId(focus).focus();
}

const openNow = () => PANELS.find((name) => !byId(name).hidden) ?? null;

function closePanel() {
  const name = openNow();
  openPanel(null);
  if (name) byId(`open-${name}`).focus();
}

function send() {
  const text = input.value.trim();
  if (!text || chat.isRunning) return;
  input.value = "";
  fitInput();
  if (narrow.matches && openNow()) openPanel(null);
  input.focus();
  chat.send(text);
}

function fitInput() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  byId("send").disabled = !input.value.trim();
}

function startPanels() {
  for (const name of PANELS) {
    byId(`open-${name}`).addEventListener("click", () => openPanel(openNow() === name ? null : name));
    byId(name).querySelector(".close").addEventListener("click", closePanel);
  }
  narrow.addEventListener("change", () => openPanel(openNow()));
  let stored = null;
  try {
    stored = localStorage.getItem(STORED);
  } catch {
    // See above.
  }
  openPanel(!narrow.matches && PANELS.includes(stored) ? stored : null);
}

function startKeys() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  input.addEventListener("input", fitInput);
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    if (chat.isRunning) chat.stop();
    else if (openNow()) closePanel();
  });
}

startParameters(() => status.restart());
startPanels();
startKeys();
byId("stop").addEventListener("click", () => {
  chat.stop();
  input.focus();
});
byId("new").addEventListener("click", () => {
  chat.clear();
  input.focus();
});
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => {
    input.value = example.textContent;
    send();
  });
}
showRunning(false);
