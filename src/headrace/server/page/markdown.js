// A little Markdown: fenced and inline code, bold, italics, headings, lists. Text stays text: nodes are made one by
// one and filled by textContent, so nothing that a model says can become markup. Links and HTML are shown as written.
import { copyButton, make } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+(.*)$/;

// Blocks of a text: {kind: "code", language, text} | {kind: "heading", level, text} | {kind: "list", items} |
// {kind: "paragraph", text}. A fence that is not closed reaches to the end, as it does while a text arrives.
export function blocksOf(text) {
  const lines = text.split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const take = FENCE.test(line) ? code : HEADING.test(line) ? heading : ITEM.test(line) ? list : paragraph;
    if (!line.trim()) at += 1;
    else at = take(lines, at, blocks);
  }
  return blocks;
}

function code(lines, at, blocks) {
  const [, fence, language] = FENCE.exec(lines[at]);
  const body = [];
  for (at += 1; at < lines.length; at += 1) {
    const line = lines[at].trim();
    if (line.length >= fence.length && line === fence[0].repeat(line.length)) break;
    body.push(lines[at]);
  }
  blocks.push({ kind: "code", language, text: body.join("\n") });
  return at + 1;
}

function heading(lines, at, blocks) {
  const [, marks, text] = HEADING.exec(lines[at]);
  blocks.push({ kind: "heading", level: marks.length, text });
  return at + 1;
}

function list(lines, at, blocks) {
  const items = [];
  for (; at < lines.length; at += 1) {
    const item = ITEM.exec(lines[at]);
    if (item) items.push({ indent: item[1].replaceAll("\t", "    ").length, mark: item[2], text: item[3] });
    else if (/^[ \t]+\S/.test(lines[at]) && !FENCE.test(lines[at])) items.at(-1).text += "\n" + lines[at].trim();
    else if (lines[at].trim() || !ITEM.test(lines[at + 1] ?? "")) break;
  }
  blocks.push({ kind: "list", items });
  return at;
}

function paragraph(lines, at, blocks) {
  const body = [lines[at]];
  for (at += 1; at < lines.length; at += 1) {
    const line = lines[at];
    if (!line.trim() || FENCE.test(line) || HEADING.test(line) || ITEM.test(line)) break;
    body.push(line);
  }
  blocks.push({ kind: "paragraph", text: body.join("\n") });
  return at;
}

// A fragment of the nodes of a text. A mark that finds no partner is looked for once only, so that the time stays linear.
export function inline(text) {
  const nodes = new DocumentFragment();
  const single = new Set();
  let plain = "";
  const push = (node) => {
    nodes.append(plain);
    plain = "";
    if (node) nodes.append(node);
  };
  for (let at = 0; at < text.length; ) {
    const mark = markAt(text, at);
    const end = mark && !single.has(mark) ? closing(text, mark, at + mark.length) : -1;
    if (end < 0) {
      if (mark && end === -1) single.add(mark);
      plain += mark || text[at];
      at += mark.length || 1;
      continue;
    }
    const inner = text.slice(at + mark.length, end);
    if (mark[0] === "`") push(make("code", { textContent: inner.replace(/^ (.*[^ ].*) $/s, "$1") }));
    else push(make(mark === "**" ? "strong" : "em", {}, inline(inner)));
    at = end + mark.length;
  }
  push();
  return nodes;
}

// The run of backticks, or the one or two stars, that begins there; empty if none does.
function markAt(text, at) {
  const char = text[at];
  if (char !== "`" && char !== "*") return "";
  let end = at + 1;
  while (text[end] === char && (char === "`" || end < at + 2)) end += 1;
  return text.slice(at, end);
}

// Where the mark's partner begins; -1 if there is none, -2 if this one opens nothing.
function closing(text, mark, from) {
  if (mark[0] === "*" && !/\S/.test(text[from] ?? "")) return -2;
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at + 1)) {
    if (mark[0] === "`") {
      if (text[at - 1] !== "`" && text[at + mark.length] !== "`") return at;
    } else if (at > from && /\S/.test(text[at - 1]) && (mark === "**" || text[at + 1] !== "*")) {
      return at;
    }
  }
  return -1;
}

function elementOf(block) {
  if (block.kind === "code") return codeElement(block);
  if (block.kind === "list") return listElement(block.items);
  if (block.kind === "heading") return make(block.level <= 2 ? "h3" : "h4", {}, inline(block.text));
  return make("p", {}, inline(block.text));
}

function codeElement({ language, text }) {
  const body = make("pre", { tabIndex: 0 }, make("code", { textContent: text }));
  body.setAttribute("aria-label", language ? `Code in ${language}` : "Code");
  return make("div", { className: "code" }, make("div", { className: "bar" }, make("span", { textContent: language }), copyButton(() => text)), body);
}

function listElement(items) {
  const root = make("div", { className: "list" });
  const open = [{ indent: -1, element: null }];
  for (const { indent, mark, text } of items) {
    const ordered = /\d/.test(mark);
    while (open.at(-1).indent > indent) open.pop();
    const top = open.at(-1);
    if (top.indent < indent || top.element.nodeName !== (ordered ? "OL" : "UL")) {
      if (top.indent === indent) open.pop();
      const parent = open.at(-1).element?.lastElementChild ?? root;
      const element = make(ordered ? "ol" : "ul", ordered ? { start: Number.parseInt(mark, 10) } : {});
      parent.append(element);
      open.push({ indent, element });
    }
    open.at(-1).element.append(make("li", {}, make("span", {}, inline(text))));
  }
  return root;
}

// Shows a growing text in `root`. Blocks that stay as they were keep their elements, and with them what is selected.
export class MarkdownView {
  #root;
  #shown = [];

  constructor(root) {
    this.#root = root;
  }

  update(text) {
    const blocks = blocksOf(text);
    const keys = blocks.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < keys.length && keys[same] === this.#shown[same]) same += 1;
    while (this.#root.children.length > same) this.#root.lastElementChild.remove();
    for (const block of blocks.slice(same)) this.#root.append(elementOf(block));
    this.#shown = keys;
  }
}
