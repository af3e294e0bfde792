// One answer: what has come of it, when, and how it is shown.
import { copyButton, make } from "./dom.js";
import { MarkdownView } from "./markdown.js";

export class Answer {
  text = "";
  reasoning = "";
  finish = null; // as the server says it, or "stopped"
  #tokens = 0;
  #isExact = false;
  #cached = 0;
  #sent = performance.now();
  #first = 0;
  #last = 0;

  // Adds what a chunk brought. A chunk is about a token; the server's own count comes at the end.
  take({ text, reasoning, finish, usage }) {
    if (text || reasoning) {
      this.#last = performance.now();
      this.#first ||= this.#last;
      if (!this.#isExact) this.#tokens += 1;
    }
    this.text += text;
    this.reasoning += reasoning;
    this.finish = finish ?? this.finish;
    if (usage) {
      this.#isExact = true;
      this.#tokens = usage.completion_tokens;
      this.#cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
  }

  // Tokens, their rate after the first, the time to the first, and why it ended, in words.
  get figures() {
    const parts = [];
    const seconds = (this.#last - this.#first) / 1000;
    if (this.#tokens) parts.push(`${this.#isExact ? "" : "about "}${this.#tokens} token${this.#tokens === 1 ? "" : "s"}`);
    if (this.#tokens > 1 && seconds > 0) parts.push(`${((this.#tokens - 1) / seconds).toFixed(1)} tokens/s`);
    if (this.#first) parts.push(`first after ${((this.#first - this.#sent) / 1000).toFixed(2)} s`);
    if (this.#cached) parts.push(`${this.#cached} prompt tokens cached`);
    if (this.finish === "length") parts.push("token limit reached");
    if (this.finish === "abort" || this.finish === "error") parts.push("ended by the server");
    if (this.finish === "stopped") parts.push("stopped");
    return parts.join(" · ");
  }
}

export class AnswerView {
  #body = make("div", { className: "text markdown" });
  #markdown = new MarkdownView(this.#body);
  #thoughts = make("details", { className: "thoughts", hidden: true }, make("summary", { textContent: "Thoughts" }), make("div"));
  #answer = null;
  #frame = 0;

  constructor() {
    const name = make("h2", { className: "hidden", textContent: "Model" });
    this.element = make("li", { className: "assistant running" }, name, this.#thoughts, this.#body);
    this.element.setAttribute("aria-busy", "true");
  }

  // Shows what has come, at most once a frame.
  update(answer) {
    this.#answer = answer;
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = 0;
    this.#markdown.update(this.#answer.text);
    this.#thoughts.hidden = !this.#answer.reasoning;
    this.#thoughts.lastElementChild.textContent = this.#answer.reasoning;
  }

  // The answer has ended: shows its figures, what went wrong if anything did, and what can be done now.
  finish(answer, { failure, again, openKey }) {
    cancelAnimationFrame(this.#frame);
    this.#answer = answer;
    this.#draw();
    this.element.classList.remove("running");
    this.element.removeAttribute("aria-busy");
    if (!answer.text && !failure) this.#body.append(make("p", { className: "nothing", textContent: "No text." }));
    if (failure) this.element.append(failureElement(failure, { again, openKey }));
    const actions = make("div", { className: "actions" });
    if (answer.text) actions.append(copyButton(() => answer.text));
    if (!failure) actions.append(actionButton("Regenerate", again, "quiet regenerate"));
    const figures = make("p", { className: "figures", textContent: answer.figures });
    this.element.append(make("div", { className: "below" }, figures, actions));
  }
}

function actionButton(textContent, act, className) {
  const button = make("button", { type: "button", className, textContent });
  button.addEventListener("click", act);
  return button;
}

function failureElement({ message, advice, status }, { again, openKey }) {
  const element = make("div", { className: "failure" }, make("p", {}, make("strong", { textContent: message })));
  element.setAttribute("role", "alert");
  if (advice) element.append(make("p", { textContent: advice }));
  const actions = make("div", { className: "actions" }, actionButton("Try again", again, "regenerate"));
  if (status === 401 || status === 403) actions.prepend(actionButton("Enter the API key", openKey, ""));
  element.append(actions);
  return element;
}
