// The copy button of a console block copies its commands, without prompts and output.
document.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest(".language-console button[data-md-type=copy]");
    if (!button) return;
    const code = button.closest("pre").querySelector("code").cloneNode(true);
    if (!code.querySelector(".gp")) return;
    const lines = code.innerHTML.split("\n").filter((line) => !line.includes('<span class="go">'));
    code.innerHTML = lines.join("\n");
    code.querySelectorAll(".gp").forEach((prompt) => prompt.remove());
    button.setAttribute("data-clipboard-text", code.textContent.trim() + "\n");
    button.removeAttribute("data-clipboard-target");
  },
  true,
);
