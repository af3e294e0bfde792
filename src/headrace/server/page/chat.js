// The chat: what was said, and the answer that is under way.
import { Answer, AnswerView } from "./answer.js";
import { ServerError, streamAnswer } from "./api.js";
import { byId, make } from "./dom.js";
import { apiKey, firstInvalid, sampling, systemMessage } from "./parameters.js";

const NEAR = 60; // pixels from the end within which the view follows a growing answer
const CONTINUED = 256; // tokens, where nobody says how many; a completion would end after 16

// What is sent of the turns. Questions that got no answer are left out, because templates want the two to alternate.
export function historyOf(turns) {
  return turns.filter(({ role, text }, i) => text && (role === "assistant" || i === turns.length - 1 || turns[i + 1].text));
}

// One text of all turns: answers go on where the question ends, questions begin a new line.
const continuedText = (turns) => turns.map(({ role, text }, i) => (i && role !== "assistant" ? "\n" : "") + text).join("");

export class Chat {
  model = "";
  hasTemplate = true;
  #turns = []; // {role, text, element}
  #running = null; // AbortController of the answer under way
  #follows = true;
  #onState;
  #openKey;

  // `onState` gets whether an answer is under way; `openKey` shows the field for the API key.
  constructor({ onState, openKey }) {
    this.#onState = onState;
    this.#openKey = openKey;
    const box = byId("scroll");
    box.addEventListener("scroll", () => (this.#follows = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR));
  }

  get isRunning() {
    return this.#running !== null;
  }

  get isEmpty() {
    return this.#turns.length === 0;
  }

  send(text) {
    const body = make("div", { className: "text", textContent: text });
    this.#add("user", text, make("li", { className: "user" }, make("h2", { className: "hidden", textContent: "You" }), body));
    this.#follows = true;
    this.#answer();
  }

  // Ends the answer under way; the server drops its request when the connection closes.
  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    this.#running = null;
    this.#turns = [];
    byId("messages").replaceChildren();
    byId("announce").textContent = "";
    this.#onState(false);
  }

  #add(role, text, element) {
    const turn = { role, text, element };
    this.#turns.push(turn);
    byId("messages").append(element);
    return turn;
  }

  #regenerate() {
    if (this.isRunning) return;
    this.#turns.pop().element.remove();
    byId("input").focus();
    this.#answer();
  }

  async #answer() {
    document.querySelector(".regenerate")?.remove(); // of the answer before: only the last one can be asked for anew
    const history = historyOf(this.#turns);
    const answer = new Answer();
    const view = new AnswerView();
    const turn = this.#add("assistant", "", view.element);
    const running = (this.#running = new AbortController());
    const isCurrent = () => this.#running === running;
    let failure = null;
    this.#onState(true);
    byId("announce").textContent = "The model answers.";
    this.#follow();
    try {
      for await (const parts of streamAnswer(...this.#request(history), { key: apiKey(), signal: running.signal })) {
        if (!isCurrent()) return;
        answer.take(parts);
        turn.text = answer.text;
        view.update(answer);
        this.#follow();
      }
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else failure = error;
    }
    if (!isCurrent()) return; // a new chat was begun meanwhile
    this.#running = null;
    view.finish(answer, { failure, again: () => this.#regenerate(), openKey: this.#openKey });
    byId("announce").textContent = failure ? "" : answer.text || "The answer has no text.";
    this.#onState(false);
    this.#follow();
  }

  // Path and body of what is asked. A model without a chat template continues the text so far.
  #request(history) {
    const invalid = firstInvalid();
    if (invalid) throw new ServerError(`${invalid.labels[0].textContent} has a value that can’t be sent.`, "Change it under Parameters, then try again.");
    const system = systemMessage();
    const turns = system ? [{ role: "system", text: system }, ...history] : history;
    const common = { ...(this.model && { model: this.model }), ...sampling() };
    if (!this.hasTemplate) return ["v1/completions", { max_tokens: CONTINUED, ...common, prompt: continuedText(turns) }];
    return ["v1/chat/completions", { ...common, messages: turns.map(({ role, text }) => ({ role, content: text })) }];
  }

  // Keeps the end in view, unless somebody has scrolled up to read.
  #follow() {
    const box = byId("scroll");
    requestAnimationFrame(() => {
      if (this.#follows) box.scrollTop = box.scrollHeight;
    });
  }
}
