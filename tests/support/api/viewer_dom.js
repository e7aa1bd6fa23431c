// Runs the API viewer in Node.js on a small document tree, opens an operation, sends its request, and prints what was sent.
// Arguments: viewer.js, openapi.json, the operation ("GET /path"), the key, and parameters as JSON.
"use strict";

const fs = require("fs");
const [script, description, wanted, key, values] = process.argv.slice(2);

class Element {
  constructor(name) {
    Object.assign(this, { name, children: [], dataset: {}, listeners: {}, value: "", hidden: false, own: "" });
  }
  append(...nodes) { this.children.push(...nodes); }
  replaceChildren(...nodes) { this.children = nodes; }
  addEventListener(event, action) { this.listeners[event] = action; }
  querySelectorAll(name) { return this.all().filter((each) => each.name === name); }
  get childElementCount() { return this.children.filter((each) => each instanceof Element).length; }
  get textContent() { return this.own + this.children.map((each) => each.textContent ?? each).join(""); }
  set textContent(text) { this.own = String(text ?? ""); this.children = []; }
  all() { return this.children.flatMap((each) => (each instanceof Element ? [each, ...each.all()] : [])); }
}

const byId = Object.fromEntries(["version", "description", "key", "filter", "operations"].map((id) => [id, new Element(id)]));
globalThis.document = { createElement: (name) => new Element(name), getElementById: (id) => byId[id] };
globalThis.location = { href: "http://localhost:8000/docs" };
const sent = [];
globalThis.fetch = async (url, options = {}) => {
  if (String(url).endsWith("/openapi.json")) {
    return { ok: true, json: async () => JSON.parse(fs.readFileSync(description, "utf8")) };
  }
  sent.push({ url: String(url), method: options.method, headers: options.headers, body: options.body ?? null });
  return { status: 200, statusText: "OK", type: "basic", text: async () => '{"answer": 42}' };
};

async function main() {
  require(script);
  await new Promise((resume) => setTimeout(resume, 0));
  const listed = byId.operations.querySelectorAll("details");
  const operation = listed.find((each) => each.children[0].children.slice(0, 2).map((x) => x.textContent).join(" ") === wanted);
  operation.open = true;
  operation.listeners.toggle();
  byId.key.value = key;
  for (const label of operation.querySelectorAll("label")) {
    const [input] = label.querySelectorAll("input");
    const name = Object.keys(JSON.parse(values)).find((each) => label.textContent.startsWith(`${each} (`));
    if (input && name) input.value = JSON.parse(values)[name];
  }
  operation.querySelectorAll("button")[0].listeners.click();
  await new Promise((resume) => setTimeout(resume, 10));
  const answer = operation.querySelectorAll("pre")[0].textContent;
  byId.filter.listeners.input({ target: { value: wanted } });
  const left = listed.filter((each) => !each.hidden).length;
  console.log(JSON.stringify({ version: byId.version.textContent, listed: listed.length, left, sent, answer }));
}

main();
