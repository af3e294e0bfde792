// The server's HTTP API, as far as the page uses it. Addresses are relative to the page, so that it also works below a
// prefix of a proxy.

// What went wrong, in words for a person: what happened, and what to do.
export class ServerError extends Error {
  constructor(message, advice, { status = 0 } = {}) {
    super(message);
    this.advice = advice;
    this.status = status;
  }
}

const ADVICE = {
  401: "Enter the server’s API key under Parameters, then try again.",
  403: "Enter the server’s API key under Parameters, then try again.",
  404: "Reload the page: the server may serve another model now.",
  413: "Begin a new chat, or send a shorter message.",
  429: "Too many requests are waiting. Try again in a moment.",
  500: "Try again; if it happens again, the server’s log says why.",
  503: "The server is starting, stopping, or its engine has failed. Try again in a moment; Status shows its state.",
};

const KEPT = "What came so far is kept. Try again for a whole answer; Status shows the server’s state.";

async function errorOf(response) {
  let said = "";
  try {
    said = (await response.json()).error?.message ?? "";
  } catch {
    // A proxy's error page, or nothing: the status has to do.
  }
  const seconds = Number(response.headers.get("Retry-After"));
  const advice =
    response.status === 429 && seconds > 0
      ? `Too many requests are waiting. Try again in ${seconds} second${seconds === 1 ? "" : "s"}.`
      : (ADVICE[response.status] ?? (response.status >= 500 ? ADVICE[500] : "Change the message or the parameters, then try again."));
  const words = response.status === 401 ? "The server wants an API key." : said || `The server answered ${response.status}.`;
  return new ServerError(words, advice, { status: response.status });
}

async function call(path, { key, ...options }) {
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...(options.body && { "Content-Type": "application/json" }) };
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server can’t be reached.", "Check that it is still running, then try again.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export const getJson = async (path, key) => (await call(path, { key })).json();

// The `data` of each server-sent event of a body, until it ends.
async function* eventsOf(body) {
  let rest = "";
  let data = [];
  for await (const piece of chunksOf(body.pipeThrough(new TextDecoderStream()))) {
    const lines = (rest + piece).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      else if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}

// Streams can be iterated in most browsers, not in all.
async function* chunksOf(stream) {
  const reader = stream.getReader();
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
  } finally {
    reader.cancel().catch(() => {});
  }
}

// What one chunk brings, whether of a chat or of a completion.
function partsOf(chunk) {
  const choice = chunk.choices?.[0];
  return {
    text: choice?.delta?.content ?? choice?.text ?? "",
    reasoning: choice?.delta?.reasoning_content ?? choice?.delta?.reasoning ?? "",
    finish: choice?.finish_reason ?? null,
    usage: chunk.usage ?? null,
  };
}

// Streams an answer as {text, reasoning, finish, usage}. Aborting the signal closes the connection, which makes the
// server drop the request. Throws ServerError, also where the stream breaks off before it has ended.
export async function* streamAnswer(path, body, { key, signal }) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await call(path, { method: "POST", body: JSON.stringify(asked), key, signal });
  let finished = false;
  let done = false;
  try {
    for await (const data of eventsOf(response.body)) {
      done ||= data === "[DONE]";
      if (done) continue; // the last event; the body is read to its end, so that the connection can be used again
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message || "The server failed while it answered.", KEPT);
      const parts = partsOf(chunk);
      finished ||= parts.finish !== null;
      yield parts;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError("The connection broke off.", KEPT);
  }
  if (!finished && !done) throw new ServerError("The answer broke off before its end.", KEPT);
}
