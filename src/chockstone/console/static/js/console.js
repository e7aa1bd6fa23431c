// The console's behaviour on every page: theme, keyboard, dialogs, messages, copy buttons, relative times, live parts.
//
// Markup that it acts on:
//   [data-theme-choice="light|dark|auto"]   theme switch
//   [data-go="r"]                           link that the keys "g r" open;  [data-search]  input that "/" focuses
//   tr[data-href]                           row that opens a page (j, k, Enter; click)
//   [data-open="#dialog"], [data-close]     dialogs;  hx-confirm="…" asks in a dialog, data-confirm-label names the button
//   [data-copy="text"]                      copies;  time[data-ago]  shows how long ago
//   body[data-live="/path"]                 event stream: "parts" events replace [data-part="name"], other events are
//                                           dispatched on document as "live:NAME" with the parsed data as detail
//   [data-needs-choice]                     button of a form that is off until a row's checkbox is on
//   [data-live-state]                       shows whether the stream is connected
// A response header HX-Trigger: {"toast": {"message": "…", "kind": "bad"}} shows a message.
(function () {
  "use strict";
  const html = document.documentElement;
  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));
  const one = (selector) => document.querySelector(selector);

  // Theme
  function theme() {
    try { return localStorage.getItem("chockstone-theme") || "auto"; } catch (error) { return "auto"; }
  }
  function setTheme(choice) {
    try { localStorage.setItem("chockstone-theme", choice); } catch (error) { /* for this page only */ }
    if (choice === "auto") delete html.dataset.theme; else html.dataset.theme = choice;
    showTheme();
    document.dispatchEvent(new CustomEvent("console:theme"));
  }
  function showTheme() {
    const chosen = theme();
    for (const button of all("[data-theme-choice]")) button.setAttribute("aria-pressed", String(button.dataset.themeChoice === chosen));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("console:theme")));

  // Messages
  function toast(message, options) {
    const given = options || {};
    const box = document.createElement("div");
    box.className = given.kind ? `toast toast-${given.kind}` : "toast";
    box.dataset.test = "toast";
    const text = document.createElement("span");
    text.textContent = message;
    box.append(text);
    if (given.action) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = given.action;
      button.addEventListener("click", () => { box.remove(); given.act(); });
      box.append(button);
    }
    one("#toasts").append(box);
    setTimeout(() => box.remove(), given.action || given.kind === "bad" ? 9000 : 4000);
  }
  document.addEventListener("toast", (event) => {
    const given = event.detail || {};
    // "undo": {"url": "/console/…"} offers to take the change back
    const undo = given.undo && { action: given.undo.label || "Undo", act: () => window.htmx.ajax("POST", given.undo.url, { target: given.undo.target || "body", swap: given.undo.swap || "none" }) };
    toast(given.message || String(given.value || ""), Object.assign({ kind: given.kind }, undo || {}));
  });
  document.addEventListener("htmx:responseError", (event) => {
    let detail = "the server could not do this";
    try { detail = JSON.parse(event.detail.xhr.responseText).detail || detail; } catch (error) { /* not JSON */ }
    toast(detail, { kind: "bad" });
  });
  document.addEventListener("htmx:sendError", () => toast("The server does not answer. Try again in a moment.", { kind: "bad" }));
  document.addEventListener("htmx:timeout", () => toast("The server took too long. Try again in a moment.", { kind: "bad" }));

  // Questions before a change
  document.addEventListener("htmx:confirm", (event) => {
    if (!event.detail.question) return;
    event.preventDefault();
    const dialog = one("#confirm");
    const button = dialog.querySelector("[data-confirm]");
    const asking = event.target;
    one("#confirm-text").textContent = event.detail.question;
    button.textContent = asking.dataset.confirmLabel || "Continue";
    button.classList.toggle("button-danger", asking.classList.contains("button-danger"));
    button.classList.toggle("button-primary", !asking.classList.contains("button-danger"));
    button.onclick = () => { dialog.close(); event.detail.issueRequest(true); };
    dialog.showModal();
    button.focus();
  });

  // Copy
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch (error) { // not a secure context
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    toast("Copied");
  }

  // Clicks
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-theme-choice], [data-open], [data-close], [data-copy], [data-menu], tr[data-href]");
    const sidebar = one("#sidebar");
    if (sidebar && sidebar.hasAttribute("data-open") && !event.target.closest("#sidebar, [data-menu]")) closeMenu();
    if (event.target.nodeName === "DIALOG") event.target.close();
    if (!target) return;
    if (target.dataset.themeChoice) setTheme(target.dataset.themeChoice);
    else if (target.dataset.copy !== undefined) { event.preventDefault(); copy(target.dataset.copy); }
    else if (target.hasAttribute("data-menu")) toggleMenu();
    else if (target.dataset.open) one(target.dataset.open).showModal();
    else if (target.hasAttribute("data-close")) target.closest("dialog").close();
    else if (target.dataset.href && !event.target.closest("a, button, input, label, summary") && !String(getSelection())) {
      if (event.metaKey || event.ctrlKey) window.open(target.dataset.href); else location.href = target.dataset.href;
    }
  });
  function toggleMenu() {
    const open = one("#sidebar").toggleAttribute("data-open");
    one("[data-menu]").setAttribute("aria-expanded", String(open));
  }
  function closeMenu() {
    one("#sidebar").removeAttribute("data-open");
    const button = one("[data-menu]");
    if (button) button.setAttribute("aria-expanded", "false");
  }

  // Rows that were selected for an action
  function showChoice() {
    for (const button of all("[data-needs-choice]")) {
      const count = button.form ? all("input[type=checkbox]:checked", button.form).length : 0;
      button.disabled = count === 0;
      const shown = button.querySelector("[data-choice-count]");
      if (shown) shown.textContent = count ? ` (${count})` : "";
    }
  }
  document.addEventListener("change", showChoice);
  document.addEventListener("console:part", showChoice);
  addEventListener("pageshow", showChoice);

  // Keyboard
  let wentAt = 0;
  let currentHref = null; // of the row that j and k chose; it stays chosen when the rows are replaced
  function showCurrent() {
    if (currentHref === null || one("tr[data-current]")) return;
    for (const row of all("tr[data-href]")) row.toggleAttribute("data-current", row.dataset.href === currentHref);
  }
  document.addEventListener("htmx:afterSwap", showCurrent);
  document.addEventListener("console:part", showCurrent);
  function moveRow(by) {
    const rows = all("tr[data-href], summary.item-row");
    if (!rows.length) return;
    const now = rows.findIndex((row) => row.hasAttribute("data-current"));
    const next = rows[Math.max(0, Math.min(rows.length - 1, now < 0 ? 0 : now + by))];
    for (const row of rows) row.toggleAttribute("data-current", row === next);
    currentHref = next.dataset.href || null;
    next.scrollIntoView({ block: "nearest" });
    if (next.nodeName === "SUMMARY") next.focus(); // Enter opens it
  }
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest && event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape") { closeMenuIfOpen(); if (isTyping) event.target.blur(); return; }
    if (isTyping || event.metaKey || event.ctrlKey || event.altKey || one("dialog[open]")) return;
    const isGoing = Date.now() - wentAt < 1500;
    wentAt = 0;
    if (isGoing) {
      const link = one(`[data-go="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); return; }
    }
    if (event.key === "g") wentAt = Date.now();
    else if (event.key === "/") { const input = one("[data-search]"); if (input) { event.preventDefault(); input.focus(); input.select(); } }
    else if (event.key === "?") { const help = one("#help"); if (help) help.showModal(); }
    else if (event.key === "t") setTheme({ auto: "light", light: "dark", dark: "auto" }[theme()]);
    else if (event.key === "j") moveRow(1);
    else if (event.key === "k") moveRow(-1);
    else if (event.key === "Enter") { const row = one("tr[data-current]"); if (row && event.target === document.body) location.href = row.dataset.href; }
  });
  function closeMenuIfOpen() { const sidebar = one("#sidebar"); if (sidebar && sidebar.hasAttribute("data-open")) closeMenu(); }

  // Times
  function ago(seconds) {
    const past = Math.abs(seconds);
    const text = past < 5 ? "now" : past < 60 ? `${Math.round(past / 5) * 5} s` : past < 3600 ? `${Math.round(past / 60)} min`
      : past < 86400 ? `${Math.round(past / 3600)} h` : past < 86400 * 60 ? `${Math.round(past / 86400)} d` : null;
    if (text === null || text === "now") return text;
    return seconds < 0 ? `in ${text}` : `${text} ago`;
  }
  function showTimes(root) {
    const now = Date.now();
    for (const time of all("time[data-ago]", root)) {
      const text = ago((now - Date.parse(time.dateTime)) / 1000);
      if (text !== null && time.textContent !== text) time.textContent = text;
    }
  }
  setInterval(() => { if (!document.hidden) showTimes(); }, 5000);

  // Live parts
  function replacePart(name, markup) {
    for (const part of all(`[data-part="${CSS.escape(name)}"]`)) {
      if (part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) continue;
      const chosen = new Set(all("input:checked", part).map((each) => `${each.name}=${each.value}`));
      const opened = new Set(all("details[open][id]", part).map((each) => each.id));
      const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
      part.innerHTML = markup;
      for (const each of all("input[type=checkbox]", part)) if (chosen.has(`${each.name}=${each.value}`)) each.checked = true;
      for (const each of all("details[id]", part)) if (opened.has(each.id)) each.open = true;
      if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
      if (window.htmx) window.htmx.process(part);
      showTimes(part);
      document.dispatchEvent(new CustomEvent("console:part", { detail: { name: name, element: part } }));
    }
  }
  const live = { source: null, url: document.body.dataset.live || "", wait: 500, timer: 0, last: "" };
  function showLive(state) {
    document.body.dataset.connection = state;
    for (const each of all("[data-live-state]")) {
      each.dataset.state = state;
      each.textContent = state === "on" ? "Live" : state === "off" ? "Reconnecting…" : "Connecting…";
    }
  }
  function connect() {
    clearTimeout(live.timer);
    if (!live.url || live.source || document.hidden) return;
    const separator = live.url.includes("?") ? "&" : "?";
    const source = new EventSource(live.last ? `${live.url}${separator}after=${encodeURIComponent(live.last)}` : live.url);
    live.source = source;
    source.addEventListener("open", () => { live.wait = 500; showLive("on"); document.dispatchEvent(new CustomEvent("console:connected")); });
    source.addEventListener("parts", (event) => { for (const [name, markup] of Object.entries(JSON.parse(event.data))) replacePart(name, markup); });
    for (const kind of (document.body.dataset.liveEvents || "").split(" ").filter(Boolean)) {
      source.addEventListener(kind, (event) => {
        if (event.lastEventId) live.last = event.lastEventId;
        document.dispatchEvent(new CustomEvent(`live:${kind}`, { detail: JSON.parse(event.data) }));
      });
    }
    source.addEventListener("error", () => { source.close(); live.source = null; showLive("off"); retry(); });
  }
  function retry() {
    clearTimeout(live.timer);
    live.timer = setTimeout(async () => {
      live.wait = Math.min(live.wait * 1.6, 5000);
      try { // a session that has ended leads to the sign-in page
        const answer = await fetch(`${document.body.dataset.base}/session`, { headers: { Accept: "application/json" } });
        if (answer.status === 401) { location.reload(); return; }
        if (!answer.ok) { retry(); return; }
      } catch (error) { retry(); return; }
      connect();
    }, live.wait);
  }
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) { showTimes(); connect(); return; }
    setTimeout(() => { // a page in the background costs nothing
      if (document.hidden && live.source) { live.source.close(); live.source = null; showLive("wait"); }
    }, 30000);
  });
  addEventListener("pagehide", () => { if (live.source) { live.source.close(); live.source = null; } });
  addEventListener("pageshow", () => connect());

  document.addEventListener("live:gone", () => { live.url = ""; toast("What this page shows was deleted.", { kind: "bad" }); });
  // A filter that changes the URL changes what the stream must send
  document.addEventListener("htmx:pushedIntoHistory", () => {
    if (!live.url) return;
    live.url = document.body.dataset.live.split("?")[0] + location.search;
    if (live.source) { live.source.close(); live.source = null; }
    connect();
  });

  document.addEventListener("htmx:afterSettle", (event) => { showTimes(event.target); showChoice(); });
  window.consolePage = { toast: toast, all: all };
  showTheme();
  showChoice();
  showTimes();
  if (live.url) { showLive("wait"); connect(); }
})();
