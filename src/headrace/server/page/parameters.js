// The fields under Parameters. They are kept by the browser; the API key only until the tab is closed.
import { byId } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const FIELDS = [...NUMBERS, "system"];
const STORED = "headrace.parameters";
const KEY = "headrace.key";

// Storage may be forbidden; what is typed then lasts as long as the page.
function stored(storage, name) {
  try {
    return window[storage].getItem(name) ?? "";
  } catch {
    return "";
  }
}

function store(storage, name, value) {
  try {
    if (value) window[storage].setItem(name, value);
    else window[storage].removeItem(name);
  } catch {
    // See above.
  }
}

function keep() {
  const values = FIELDS.map((name) => [name, byId(name).value]).filter(([, value]) => value !== "");
  store("localStorage", STORED, values.length ? JSON.stringify(Object.fromEntries(values)) : "");
}

// Says beside a field what is wrong with it, and that nothing is when nothing is.
function check(input) {
  const note = byId(`${input.id}-error`);
  const { min, max } = input;
  const range = max ? `between ${min} and ${max}` : `${min} or more`;
  note.textContent = input.validity.valid ? "" : `Must be a${input.step === "1" ? " whole" : ""} number ${range}, or empty.`;
  input.setAttribute("aria-invalid", String(!input.validity.valid));
}

function restore() {
  let values = {};
  try {
    values = JSON.parse(stored("localStorage", STORED) || "{}");
  } catch {
    // Not ours: begin anew.
  }
  for (const name of FIELDS) if (typeof values?.[name] === "string") byId(name).value = values[name];
  byId("key").value = stored("sessionStorage", KEY);
}

// Fills the fields and keeps what is changed in them; calls `onKey` when there is another API key.
export function startParameters(onKey) {
  restore();
  for (const name of NUMBERS) {
    byId(name).addEventListener("input", (event) => check(event.target));
    check(byId(name));
  }
  byId("parameters-form").addEventListener("submit", (event) => event.preventDefault());
  byId("parameters-form").addEventListener("input", keep);
  byId("key").addEventListener("change", () => {
    store("sessionStorage", KEY, byId("key").value);
    onKey();
  });
  byId("defaults").addEventListener("click", () => {
    for (const name of FIELDS) byId(name).value = "";
    NUMBERS.forEach((name) => check(byId(name)));
    keep();
  });
}

export const apiKey = () => byId("key").value.trim();
export const systemMessage = () => byId("system").value.trim();

// The first number field whose value can't be sent, or null.
export const firstInvalid = () => NUMBERS.map(byId).find((input) => !input.validity.valid) ?? null;

// What is to be sent; empty fields are left out, so that the server's own defaults hold.
export function sampling() {
  const given = NUMBERS.filter((name) => byId(name).value !== "");
  return Object.fromEntries(given.map((name) => [name, Number(byId(name).value)]));
}
