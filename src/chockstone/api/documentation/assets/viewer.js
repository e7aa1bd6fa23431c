// Shows the OpenAPI document of this server and sends requests to it. All text is set as text, never as markup.
"use strict";

const MOST_CHARACTERS = 100000; // of an answer that is shown
const ROOT = new URL("./", location.href); // where this server is, also behind a proxy that adds a path
const METHODS = ["get", "post", "put", "patch", "delete"];

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function resolve(schema, api) {
  let found = schema;
  for (let depth = 0; found && found.$ref && depth < 10; depth += 1) {
    found = found.$ref.slice(2).split("/").reduce((part, name) => (part || {})[name], api);
  }
  return found || {};
}

function typeName(schema, api) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return choices.map((each) => typeName(each, api)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  if (schema.type === "array") return `list of ${typeName(schema.items, api) || "anything"}`;
  return schema.format ? `${schema.type} (${schema.format})` : schema.type || "anything";
}

// A value that has the required fields of a schema.
function example(schema, api, depth = 0) {
  const found = resolve(schema, api);
  if (found.default !== undefined) return found.default;
  if (found.const !== undefined) return found.const;
  if (found.enum) return found.enum[0];
  const choices = found.anyOf || found.oneOf;
  if (choices) return example(choices[0], api, depth);
  if (found.type === "array") return [];
  if (found.type === "string") return "";
  if (found.type === "integer" || found.type === "number") return found.minimum || 0;
  if (found.type === "boolean") return false;
  if (found.type === "null") return null;
  if (depth > 4) return {};
  const required = found.required || [];
  return Object.fromEntries(required.map((name) => [name, example((found.properties || {})[name], api, depth + 1)]));
}

function table(headers, rows) {
  const head = element("tr", {}, ...headers.map((text) => element("th", { textContent: text })));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((text) => element("td", { textContent: text || "" }))));
  return element("table", {}, head, ...body);
}

function fieldsOf(schema, api) {
  const found = resolve(schema, api);
  const required = found.required || [];
  return Object.entries(found.properties || {}).map(([name, field]) => [
    name,
    typeName(field, api),
    required.includes(name) ? "required" : field.default === undefined ? "" : `default ${JSON.stringify(field.default)}`,
    field.description,
  ]);
}

async function send(request, method, path, output) {
  output.hidden = false;
  output.textContent = "Waiting for the answer …";
  const url = new URL(path.slice(1), ROOT);
  const headers = {};
  const key = document.getElementById("key").value.trim();
  if (key) headers["X-API-Key"] = key;
  for (const { parameter, input } of request.parameters) {
    const value = input.value;
    if (parameter.in === "path") url.pathname = url.pathname.replace(encodeURI(`{${parameter.name}}`), encodeURIComponent(value));
    else if (value !== "" && parameter.in === "query") url.searchParams.set(parameter.name, value);
    else if (value !== "" && parameter.in === "header") headers[parameter.name] = value;
  }
  const options = { method: method.toUpperCase(), headers, redirect: "manual" };
  if (request.body) {
    options.body = request.body.value;
    headers["Content-Type"] = "application/json";
  }
  try {
    const started = performance.now();
    const answer = await fetch(url, options);
    if (answer.type === "opaqueredirect") {
      output.textContent = "The server redirects to another address.";
      return;
    }
    let text = await answer.text();
    try {
      text = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // not JSON: shown as it is
    }
    const took = Math.round(performance.now() - started);
    output.textContent = `${answer.status} ${answer.statusText}, ${took} ms\n\n${text.slice(0, MOST_CHARACTERS)}`;
  } catch (error) {
    output.textContent = `The request failed: ${error.message}`;
  }
}

function fill(panel, method, path, operation, api) {
  const request = { parameters: [], body: null };
  if (operation.description) panel.append(element("p", { textContent: operation.description }));
  const needsKey = (operation.security || []).length > 0;
  panel.append(element("p", { className: "note", textContent: needsKey ? "Needs an API key." : "Needs no API key." }));

  const parameters = (operation.parameters || []).map((each) => resolve(each, api));
  if (parameters.length) panel.append(element("h3", { textContent: "Parameters" }));
  for (const parameter of parameters) {
    const input = element("input", { spellcheck: false });
    const about = `${parameter.name} (${parameter.in}, ${typeName(parameter.schema, api)}${parameter.required ? ", required" : ""}) `;
    panel.append(element("p", {}, element("label", {}, about, input)));
    request.parameters.push({ parameter, input });
  }

  const content = resolve(operation.requestBody, api).content || {};
  const body = content["application/json"];
  if (body) {
    panel.append(element("h3", { textContent: `Request body: ${typeName(body.schema, api)}` }));
    const fields = fieldsOf(body.schema, api);
    if (fields.length) panel.append(table(["field", "type", "", ""], fields));
    const label = element("label", { textContent: "JSON to send" });
    request.body = element("textarea", { value: JSON.stringify(example(body.schema, api), null, 2), spellcheck: false });
    label.append(request.body);
    panel.append(element("p", {}, label));
  }

  const answers = Object.entries(operation.responses || {}).map(([status, each]) => {
    const answer = resolve(each, api);
    const schema = ((answer.content || {})["application/json"] || {}).schema;
    return [status, answer.description, typeName(schema, api)];
  });
  panel.append(element("h3", { textContent: "Answers" }), table(["status", "", "type"], answers));

  const output = element("pre", { hidden: true });
  const button = element("button", { textContent: "Send request", type: "button" });
  button.addEventListener("click", () => send(request, method, path, output));
  panel.append(element("p", {}, button), output);
}

function show(api) {
  document.getElementById("version").textContent = api.info.version;
  document.getElementById("description").textContent = (api.info.description || "").replaceAll("`", "");
  const groups = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((each) => methods[each])) {
      const operation = methods[method];
      const tag = (operation.tags || ["other"])[0];
      const details = element(
        "details",
        {},
        element(
          "summary",
          {},
          element("span", { className: "method", textContent: method.toUpperCase() }),
          element("span", { className: "path", textContent: path }),
          element("span", { className: "about", textContent: `  ${operation.summary || ""}` }),
        ),
      );
      details.dataset.words = `${method} ${path} ${tag} ${operation.summary || ""} ${operation.description || ""}`.toLowerCase();
      const panel = element("div", { className: "operation" });
      details.append(panel);
      details.addEventListener("toggle", () => {
        if (details.open && !panel.childElementCount) fill(panel, method, path, operation, api);
      });
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(details);
    }
  }
  const sections = [...groups].map(([tag, operations]) =>
    element("section", {}, element("h2", { textContent: tag }), ...operations),
  );
  document.getElementById("operations").replaceChildren(...sections);
  document.getElementById("filter").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    for (const section of sections) {
      const operations = [...section.querySelectorAll("details")];
      for (const each of operations) each.hidden = !each.dataset.words.includes(wanted);
      section.hidden = operations.every((each) => each.hidden);
    }
  });
}

fetch(new URL("openapi.json", ROOT))
  .then((answer) => {
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    return answer.json();
  })
  .then(show)
  .catch((error) => {
    document.getElementById("operations").textContent = `The API description could not be loaded: ${error.message}.`;
  });
