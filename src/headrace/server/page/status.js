// The status view: asks /status once a second while it is open and the tab is seen, and turns counters into rates.
import { getJson } from "./api.js";
import { byId } from "./dom.js";
import { apiKey } from "./parameters.js";

const OPEN_MS = 1000;
const CLOSED_MS = 10000; // only the state beside the button
const SEEN = 60; // polls in the curve, a minute
const WINDOW = 3; // polls that a rate is taken over
const WORDS = {
  starting: "Starting",
  serving: "Serving",
  draining: "Draining: takes no new requests",
  dead: "Engine failed",
  paused: "Paused",
  unreachable: "Not reachable",
  locked: "Needs an API key",
};

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const number = (value) => (value >= 100 ? whole : one).format(value);
const percent = (part, all) => (all > 0 ? `${one.format((100 * part) / all)} %` : "–");

function duration(seconds) {
  const s = Math.floor(seconds);
  const parts = [[Math.floor(s / 86400), "d"], [Math.floor(s / 3600) % 24, "h"], [Math.floor(s / 60) % 60, "min"], [s % 60, "s"]];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).map(([value, unit]) => `${value} ${unit}`).join(" ");
}

// Rates between two answers of /status; null where they can't be told, as after a restart of the server.
export function ratesOf(before, now) {
  const seconds = before ? now.uptime_seconds - before.uptime_seconds : 0;
  const steps = before ? now.steps - before.steps : 0;
  if (seconds <= 0 || steps < 0) return { tokensPerSecond: null, stepMs: null, busy: null };
  const inSteps = now.step_seconds - before.step_seconds;
  return {
    tokensPerSecond: (now.output_tokens - before.output_tokens) / seconds,
    stepMs: steps ? (1000 * inSteps) / steps : null,
    busy: Math.min(1, inSteps / seconds),
  };
}

export class StatusView {
  #samples = [];
  #history = [];
  #timer = 0;
  #round = 0;
  #isOpen = false;
  #onAnswer;

  // `onAnswer` gets each answer of /status, or null and why there is none: "unreachable" or "locked".
  constructor(onAnswer) {
    this.#onAnswer = onAnswer;
    document.addEventListener("visibilitychange", () => this.restart());
  }

  set isOpen(value) {
    this.#isOpen = value;
    this.restart();
  }

  // Asks at once, and from then on again and again while the tab is seen.
  restart() {
    clearTimeout(this.#timer);
    this.#samples = [];
    this.#history = [];
    this.#round += 1;
    if (!document.hidden) this.#poll(this.#round);
  }

  async #poll(round) {
    const began = performance.now();
    let status = null;
    let failed = "unreachable";
    try {
      status = await getJson("status", apiKey());
    } catch (error) {
      if (error.status === 401 || error.status === 403) failed = "locked";
    }
    if (round !== this.#round) return;
    if (status) this.#show(status);
    else this.#showFailure(failed);
    const pause = (this.#isOpen ? OPEN_MS : CLOSED_MS) - (performance.now() - began);
    this.#timer = setTimeout(() => this.#poll(round), Math.max(pause, OPEN_MS / 2));
  }

  #state(state) {
    byId("state").textContent = WORDS[state] ?? state;
    byId("state-button").textContent = WORDS[state] ?? state;
    for (const dot of document.querySelectorAll(".dot")) dot.dataset.state = state;
  }

  #showFailure(state) {
    this.#samples = [];
    this.#state(state);
    byId("figures").classList.add("old");
    this.#onAnswer(null, state);
  }

  #show(status) {
    const rates = ratesOf(this.#samples[0], status);
    this.#samples = [...this.#samples, status].slice(-WINDOW);
    this.#state(status.state);
    byId("figures").classList.remove("old");
    const used = status.pages - status.free_pages;
    const texts = {
      running: whole.format(status.running),
      "running-of": `of ${whole.format(status.max_running)} at once`,
      waiting: whole.format(status.waiting),
      pages: percent(used, status.pages),
      "pages-of": `${whole.format(used)} of ${whole.format(status.pages)} pages`,
      "tokens-per-second": rates.tokensPerSecond === null ? "–" : number(rates.tokensPerSecond),
      "step-time": rates.stepMs === null ? "–" : `${number(rates.stepMs)} ms`,
      busy: rates.busy === null ? "–" : percent(rates.busy, 1),
      prefix: percent(status.prefix_hit_tokens, status.prefix_queried_tokens),
      uptime: duration(status.uptime_seconds),
      "output-tokens": whole.format(status.output_tokens),
      preemptions: whole.format(status.preemptions),
      compilations: whole.format(status.compilations),
      version: status.version,
    };
    for (const [id, text] of Object.entries(texts)) byId(id).textContent = text;
    byId("pages-bar").style.width = `${status.pages ? (100 * used) / status.pages : 0}%`;
    if (this.#isOpen && rates.tokensPerSecond !== null) this.#draw(rates.tokensPerSecond);
    this.#onAnswer(status);
  }

  #draw(tokensPerSecond) {
    this.#history = [...this.#history, tokensPerSecond].slice(-SEEN);
    const most = Math.max(...this.#history, 1);
    const first = SEEN - this.#history.length;
    const points = this.#history.map((value, i) => `${first + i},${(22 - (20 * value) / most).toFixed(2)}`);
    byId("curve").setAttribute("points", points.join(" "));
    byId("curve-area").setAttribute("points", `${first},24 ${points.join(" ")} ${SEEN - 1},24`);
  }
}
