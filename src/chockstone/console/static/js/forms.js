// Forms that say in their own place why the server refused them. Other requests say it as a message (console.js).
"use strict";

(() => {
  const formOf = event => event.detail.elt.closest("form");

  function reasonOf(xhr) {
    try {
      return JSON.parse(xhr.responseText).detail;
    } catch {
      return "";
    }
  }

  document.body.addEventListener("htmx:beforeRequest", event => {
    for (const old of formOf(event)?.querySelectorAll("[data-form-error]") ?? []) old.remove();
  });
  document.body.addEventListener("htmx:responseError", event => {
    const form = formOf(event);
    const reason = reasonOf(event.detail.xhr);
    if (!form || !reason) return;
    event.stopPropagation();
    const line = document.createElement("p");
    line.className = "field-error form-error";
    line.setAttribute("role", "alert");
    line.dataset.formError = "";
    line.dataset.test = "form-error";
    line.textContent = reason;
    form.append(line);
  });
})();
