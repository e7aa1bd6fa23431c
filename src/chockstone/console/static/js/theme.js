// Sets the chosen theme before the first paint. Without a choice, the system's setting decides (css/tokens.css).
(function () {
  "use strict";
  let choice = null;
  try { choice = localStorage.getItem("chockstone-theme"); } catch (error) { /* storage is off: follow the system */ }
  if (choice === "light" || choice === "dark") document.documentElement.dataset.theme = choice;
})();
