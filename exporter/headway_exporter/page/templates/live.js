(() => {
  "use strict";
  const every = 1000 * Number(document.body.dataset.refreshSeconds);
  const stale = document.getElementById("stale");
  const pause = document.getElementById("pause");
  let heard = Date.now(), failing = false, paused = false, timer = 0, asking = false;

  const clock = at => new Date(at).toISOString().slice(11, 19) + " UTC";
  const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.id || "") === (b.id || "");

  // Changes `old` into `fresh` in place: what stays the same is not touched, so focus, selection and opened details stay where they are.
  function morph(old, fresh) {
    if (old.nodeType !== 1) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const {name} of [...old.attributes])
      if (!fresh.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
    for (const {name, value} of [...fresh.attributes])
      if (old.getAttribute(name) !== value && !(old.nodeName === "DETAILS" && name === "open")) old.setAttribute(name, value);
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      let match = null;
      if (child.id) {
        for (let one = at; one; one = one.nextSibling) if (same(one, child)) { match = one; break; }
        while (match && at !== match) { const next = at.nextSibling; at.remove(); at = next; }
      } else if (at && same(at, child)) match = at;
      if (match) { at = match.nextSibling; morph(match, child); }
      else old.insertBefore(document.importNode(child, true), at);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  function tell() {
    stale.hidden = !failing;
    document.body.classList.toggle("stale", failing);
    if (failing)
      stale.textContent = `No answer from the sidecar since ${clock(heard)} (${Math.round((Date.now() - heard) / 1000)} s): what is shown is of then.`;
  }

  async function ask() {
    if (asking) return;
    asking = true;
    try {
      const answer = await fetch(location.pathname, {cache: "no-store", signal: AbortSignal.timeout(10000)});
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelectorAll("[data-live]");
      if (!answer.ok || !fresh.length) throw new Error(String(answer.status));
      for (const one of fresh) morph(document.getElementById(one.id), one);
      document.title = page.title;
      heard = Date.now();
      failing = false;
    } catch {
      failing = true;
    }
    asking = false;
    tell();
  }

  function turn() {
    clearInterval(timer);
    timer = 0;
    pause.textContent = paused ? "Go on updating" : "Pause updates";
    if (paused || document.hidden) return;
    ask();
    timer = setInterval(ask, every);
  }

  pause.hidden = false;
  pause.addEventListener("click", () => { paused = !paused; turn(); });
  document.addEventListener("visibilitychange", turn);
  setInterval(() => { if (failing && !document.hidden) tell(); }, 1000);
  timer = setInterval(ask, every);
  if (document.hidden) turn();
})();
