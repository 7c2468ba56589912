// The console's own script: dialogs, theme, copying, and pages that keep themselves up to date.
// Every page works without it: a dialog is a plain #fragment then, and an old page is reloaded by hand.
(() => {
  const PATIENCE = 20000; // milliseconds: PostgreSQL has fewer to answer a page
  const root = document.documentElement;
  const all = (selector, act, within = document) => within.querySelectorAll(selector).forEach(act);

  const setTheme = (value) => {
    if (value === "auto") root.removeAttribute("data-theme");
    else root.dataset.theme = value;
    all("[data-set-theme]", (button) =>
      button.setAttribute("aria-pressed", String(button.dataset.setTheme === value)));
    document.cookie = `pgbus_theme=${value}; path=${root.dataset.path}; max-age=31536000; samesite=lax`;
    document.dispatchEvent(new Event("pgbus:theme"));
  };

  // A link that opens a dialog is a button to whoever cannot see it.
  const dress = () => {
    all("a[data-dialog], a[data-ask]", (link) => {
      link.setAttribute("role", "button");
      link.setAttribute("aria-haspopup", "dialog");
    });
    // One that came open with its page: once it is left, its address must not open it again.
    all("dialog[data-modal]:not(:modal)", (dialog) => {
      dialog.open = false;
      dialog.showModal();
      dialog.addEventListener("close", () => {
        dialog.removeAttribute("data-modal");
        history.replaceState(null, "", dialog.querySelector("[data-close]").href);
      }, { once: true });
    });
  };

  // Asks the server for a dialog, so that a page of many rows need not carry one for each.
  let opener;
  const ask = async (link) => {
    if (link.dataset.asked) return;
    if (!link.closest("dialog")) opener = link;
    link.dataset.asked = "1";
    try {
      const answer = await fetch(link.href, { headers: { "X-Pgbus-Live": "1" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const dialog = page.querySelector("dialog[data-modal]");
      if (!answer.ok || !dialog) throw new Error("no dialog");
      dialog.addEventListener("close", () => { dialog.remove(); opener?.focus(); });
      document.getElementById(dialog.id)?.remove();
      document.body.append(dialog);
      dress();
    } catch { location.assign(link.href); } finally { delete link.dataset.asked; }
  };

  const actions = {
    "[data-set-theme]": (button) => setTheme(button.dataset.setTheme),
    "a[data-dialog]": (link) => document.querySelector(link.hash).showModal(),
    "a[data-ask]": (link) => ask(link),
    "a[data-unfold]": (link) => {
      const field = document.querySelector(link.hash);
      field.closest("details").open = true;
      field.focus();
    },
    "dialog:modal [data-close]": (link) => link.closest("dialog").close(),
    ".toast button": (button) => button.closest(".toast").remove(),
    "[data-live-switch]": () => live.toggle(),
    "[data-copy]": async (button) => {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.querySelector("span").textContent = button.dataset.copied;
    },
  };
  document.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    for (const [selector, act] of Object.entries(actions)) {
      const found = event.target.closest?.(selector);
      if (found) { event.preventDefault(); act(found); return; }
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === " " && event.target.matches?.("a[role=button]")) {
      event.preventDefault();
      event.target.click();
    }
  });
  // A second press of a button while the first is on its way would do it twice.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "1";
  });
  window.addEventListener("pageshow", () => all("form[data-sent]", (form) => delete form.dataset.sent));

  // Makes `now` look like `next` in place: what did not change keeps focus, scroll and selection,
  // what somebody typed or opened stays.
  const keyOf = (node) => node.id || node.dataset?.key;
  const morph = (now, next) => {
    if (now.isEqualNode(next)) return;
    if (now.nodeType !== Node.ELEMENT_NODE) { now.data = next.data; return; }
    if (now.matches("dialog[open], [data-keep]")) return;
    if (now.matches("select")) {
      const { value } = now;
      now.replaceChildren(...next.childNodes);
      now.value = value;
      if (now.selectedIndex < 0) now.selectedIndex = 0;
      return;
    }
    if (now.matches("input, textarea")) {
      if (now.value === now.defaultValue) now.value = now.defaultValue = next.defaultValue;
      return;
    }
    for (const { name } of [...now.attributes])
      if (!next.hasAttribute(name) && !(name === "open" && now.matches("details"))) now.removeAttribute(name);
    for (const { name, value } of next.attributes)
      if (now.getAttribute(name) !== value && !(name === "open" && now.matches("details")))
        now.setAttribute(name, value);
    const keyed = new Map([...now.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
    let at = now.firstChild;
    for (const want of [...next.childNodes]) {
      const key = keyOf(want);
      const same = key ? keyed.get(key) : at && !keyOf(at) && at;
      if (same && same.nodeName === want.nodeName) {
        if (same === at) at = at.nextSibling; else now.insertBefore(same, at);
        morph(same, want);
      } else now.insertBefore(want, at);
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  };

  const live = {
    timer: 0,
    failures: 0,
    stopped: false,
    get main() { return document.getElementById("main"); },
    get seconds() { return Number(this.main?.dataset.live || 0); },
    say(state) {
      const line = document.querySelector("[data-live-line]");
      if (line) line.querySelector("span").textContent = line.dataset[state];
    },
    toggle() {
      this.stopped = !this.stopped;
      const button = document.querySelector("[data-live-switch]");
      button.textContent = this.stopped ? button.dataset.start : button.dataset.stop;
      clearTimeout(this.timer);
      if (this.stopped) this.say("stopped"); else this.read();
    },
    plan() {
      clearTimeout(this.timer);
      if (!this.seconds || this.stopped || document.hidden) return;
      const wait = this.seconds * Math.min(2 ** this.failures, 8) * (0.9 + Math.random() / 5);
      this.timer = setTimeout(() => this.read(), wait * 1000);
    },
    // Whether somebody is in the middle of something that a new page would disturb.
    busy() {
      const selection = getSelection();
      if (!selection.isCollapsed && this.main.contains(selection.anchorNode)) return true;
      return Boolean(document.querySelector("dialog[open]"))
        || Boolean(document.activeElement?.matches("main input, main textarea, main select"));
    },
    async read() {
      clearTimeout(this.timer);
      if (this.busy()) { this.say("waiting"); this.plan(); return; }
      const late = new AbortController();
      this.timer = setTimeout(() => late.abort(), PATIENCE);
      try {
        const answer = await fetch(this.main.dataset.address || location.href,
          { headers: { "X-Pgbus-Live": "1" }, signal: late.signal });
        // Whoever is signed out is sent elsewhere, or told so: neither is this page.
        if (answer.redirected || [401, 403].includes(answer.status)) { this.say("out"); return; }
        if (!answer.ok) throw new Error(answer.status);
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        this.failures = 0;
        if (this.busy() || this.stopped) { this.plan(); return; }
        document.title = page.title;
        for (const part of ["nav", "main", "dialogs"]) {
          const now = document.getElementById(part), next = page.getElementById(part);
          if (now && next) morph(now, next);
        }
        dress();
        document.dispatchEvent(new Event("pgbus:live"));
      } catch {
        this.failures += 1;
        this.say("away");
      }
      this.plan();
    },
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && live.seconds && !live.stopped) live.read(); else live.plan();
  });

  dress();
  all("[data-now]", (link) => {
    const strip = link.parentElement;
    strip.scrollLeft = link.offsetLeft - (strip.clientWidth - link.offsetWidth) / 2;
  });
  live.plan();
})();
