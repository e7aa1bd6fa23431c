// The playground: sends prompts, follows the answers as they come, and shows what is known of each token.
// The server cancels a sample when its connection is closed: by Stop, by a new sample, or by leaving the page.
"use strict";

(() => {
  const form = document.getElementById("playground");
  if (!form) return;

  const token = JSON.parse(document.body.getAttribute("hx-headers"))["X-Console-Token"];
  const panes = [...form.querySelectorAll("[data-pane]")];
  const underWay = new Map(); // pane → AbortController
  const find = (root, selector) => root.querySelector(selector);

  // Prompt: messages or plain text

  function setMode(mode) {
    form.elements.mode.value = mode;
    for (const button of form.querySelectorAll("[data-mode]")) {
      button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    }
    find(form, "[data-chat]").hidden = mode !== "chat";
    find(form, "[data-plain]").hidden = mode !== "plain";
  }

  function renumber() {
    [...form.querySelectorAll("[data-message]")].forEach((message, number) => {
      find(message, "select").name = `role-${number}`;
      find(message, "textarea").name = `content-${number}`;
    });
  }

  function addMessage(role, content, { first = false, focus = true } = {}) {
    const message = document.getElementById("message-template").content.firstElementChild.cloneNode(true);
    find(message, "select").value = role;
    find(message, "textarea").value = content;
    const list = find(form, "[data-messages]");
    if (first) list.prepend(message);
    else list.append(message);
    renumber();
    if (focus) find(message, "textarea").focus();
  }

  function continueChat(text) {
    const last = [...form.querySelectorAll("[data-message]")].at(-1);
    if (last && !find(last, "textarea").value.trim()) last.remove();
    addMessage("assistant", text, { focus: false });
    addMessage("user", "");
    setMode("chat");
  }

  // Sources

  const sourceOf = pane => find(pane, "[data-source]").value || find(pane, "[data-other]").value.trim();

  async function describe(pane) {
    const source = sourceOf(pane);
    const hint = find(form, "[data-mode-hint]");
    if (!source) return;
    try {
      const answer = await fetch(`${form.dataset.describe}?source=${encodeURIComponent(source)}`);
      const facts = await answer.json();
      if (!answer.ok) {
        hint.textContent = facts.detail;
        return;
      }
      hint.textContent = facts.problem ?? (facts.chat ? "" : "This model has no chat template.");
      find(form, '[data-mode="chat"]').disabled = !facts.chat;
      if (!facts.chat) setMode("plain");
    } catch {
      hint.textContent = "The server does not answer.";
    }
  }

  // Samples

  function fieldsOf(pane) {
    const fields = new URLSearchParams();
    for (const element of form.elements) {
      const own = element.closest("[data-pane]");
      if (element.name && !element.disabled && (own === null || own === pane)) fields.set(element.name, element.value);
    }
    fields.set("source", sourceOf(pane));
    fields.delete("other");
    return fields;
  }

  function line(kind, text, test) {
    const paragraph = document.createElement("p");
    paragraph.className = kind;
    paragraph.textContent = text;
    if (test) paragraph.dataset.test = test;
    return paragraph;
  }

  function showButtons() {
    find(form, "[data-stop]").hidden = underWay.size === 0;
  }

  async function run(pane) {
    underWay.get(pane)?.abort();
    const control = new AbortController();
    underWay.set(pane, control);
    showButtons();
    const output = find(pane, "[data-output]");
    find(pane, "[data-inspector]").hidden = true;
    output.replaceChildren(line("faint small", "Sampling…", "sampling"));
    try {
      const answer = await fetch(form.dataset.sample, {
        method: "POST",
        body: fieldsOf(pane),
        headers: { "X-Console-Token": token },
        signal: control.signal,
      });
      if (!answer.ok) {
        const { detail } = await answer.json();
        output.replaceChildren(line("callout callout-bad", detail, "sample-error"));
        return;
      }
      await follow(answer.body, output);
    } catch (error) {
      if (underWay.get(pane) !== control) return; // a newer sample of this pane
      const text = error.name === "AbortError" ? "Stopped." : "The connection to the server broke. Try again.";
      const kind = error.name === "AbortError" ? "faint small" : "callout callout-bad";
      output.replaceChildren(line(kind, text, error.name === "AbortError" ? "stopped" : "sample-error"));
    } finally {
      if (underWay.get(pane) === control) underWay.delete(pane);
      showButtons();
    }
  }

  async function follow(body, output) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let ended = false;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const each of lines) {
        const event = JSON.parse(each);
        if (event.state === "waiting") {
          find(output, "[data-test=sampling]").textContent = event.why ? `Waiting: ${event.why}` : "Sampling…";
        } else {
          output.innerHTML = event.html; // rendered by the server, with every text escaped
          ended = true;
        }
      }
    }
    if (!ended) output.replaceChildren(line("callout callout-bad", "The server ended before the sample did. Try again.", "sample-error"));
  }

  // Tokens

  function inspect(element) {
    const pane = element.closest("[data-pane]");
    for (const other of pane.querySelectorAll('[aria-selected="true"]')) other.setAttribute("aria-selected", "false");
    element.setAttribute("aria-selected", "true");
    const details = JSON.parse(element.dataset.details);
    const panel = find(pane, "[data-inspector]");
    const head = document.createElement("div");
    head.className = "inspector-head";
    const text = document.createElement("code");
    text.textContent = JSON.stringify(details.text);
    head.append(text, line("", `${details.percent} %`, "percent"), line("muted", `log-probability ${details.logprob}`, "logprob"), line("faint", `token ${details.token}`));
    panel.replaceChildren(head);
    for (const [other, percent] of details.others) {
      const row = document.createElement("div");
      row.className = "other";
      row.dataset.test = "alternative";
      const name = document.createElement("code");
      name.textContent = JSON.stringify(other);
      const bar = document.createElement("progress");
      bar.className = "meter";
      bar.max = 100;
      bar.value = percent;
      bar.setAttribute("aria-label", `probability of ${JSON.stringify(other)}`);
      row.append(name, bar, line("num", `${percent} %`));
      panel.append(row);
    }
    panel.hidden = false;
  }

  function move(list, step) {
    const tokens = [...list.children];
    const at = tokens.findIndex(each => each.getAttribute("aria-selected") === "true");
    const next = tokens[Math.min(tokens.length - 1, Math.max(0, at + step))];
    if (!next) return;
    inspect(next);
    next.scrollIntoView({ block: "nearest" });
  }

  form.addEventListener("mouseover", event => {
    const element = event.target.closest(".token");
    if (element) inspect(element);
  });
  form.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
      return;
    }
    const list = event.target.closest("[data-tokens]");
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -1e6, End: 1e6 }[event.key];
    if (list && step) {
      event.preventDefault();
      move(list, step);
    }
  });

  // Buttons

  form.addEventListener("submit", event => {
    event.preventDefault();
    for (const pane of panes) if (!pane.hidden) run(pane);
  });
  form.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.mode) setMode(button.dataset.mode);
    else if ("stop" in button.dataset) for (const control of underWay.values()) control.abort();
    else if ("addMessage" in button.dataset) addMessage("user", "");
    else if ("addSystem" in button.dataset) addMessage("system", "", { first: true });
    else if ("removeMessage" in button.dataset) {
      button.closest("[data-message]").remove();
      renumber();
    } else if ("continue" in button.dataset) continueChat(button.dataset.continue);
    else if ("single" in button.dataset) setDouble(false);
  });
  form.addEventListener("change", event => {
    const pane = event.target.closest("[data-pane]");
    if (event.target.matches("[data-colours]")) form.classList.toggle("no-colours", !event.target.checked);
    if (event.target.matches("[data-source]")) {
      find(pane, "[data-other]").hidden = event.target.value !== "";
      if (!event.target.value) find(pane, "[data-other]").focus();
    }
    if (event.target.matches("[data-source], [data-other]")) describe(pane);
  });

  function setDouble(isDouble) {
    const [, second] = panes;
    second.hidden = second.disabled = !isDouble;
    find(form, "[data-panes]").classList.toggle("is-double", isDouble);
    compare.setAttribute("aria-pressed", String(isDouble));
    if (!isDouble) underWay.get(second)?.abort();
  }

  const compare = document.querySelector("[data-compare]");
  compare.addEventListener("click", () => setDouble(panes[1].hidden));
  if (panes[0]) describe(panes[0]);
})();
