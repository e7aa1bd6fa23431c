// Browsers start no worker on a page from the file system. On such a page, run the search worker in a hidden frame.
// zensical.toml names this file, so that the theme does not load the same from another host.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const copy = structuredClone(data); // a worker shares no objects with its page
        setTimeout(() => this.onmessage?.({ data: copy }));
      };
      this.loaded = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, document.baseURI);
        script.onload = () => resolve(inside);
        script.onerror = reject;
        inside.document.documentElement.append(script);
      });
    }

    postMessage(data) {
      const copy = structuredClone(data);
      this.loaded.then((inside) => inside.onmessage({ data: copy }), (error) => this.onerror?.(error));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
