// Everything works without this file. It keeps what is live on a page fresh (elements with an id and data-live),
// and gives a copy button to what is there to be copied.
"use strict";

(() => {
  const QUICKEST_MS = 1500;   // between two looks of one page

  let looking = false, again = false, last = 0, timer = 0, source = null;

  async function look() {
    clearTimeout(timer);
    const wait = last + QUICKEST_MS - performance.now();
    if (looking || wait > 0) {
      again = looking;
      if (!looking) timer = setTimeout(look, wait);
      return;
    }
    looking = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
      if (answer.ok) freshen(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      // the server is away for a moment; the next event comes when it is back
    } finally {
      looking = false;
      last = performance.now();
      if (again) { again = false; look(); }
    }
  }

  function freshen(page) {
    for (const now of page.querySelectorAll("[data-live][id]")) {
      if (!document.getElementById(now.id)) appear(now);
    }
    for (const old of document.querySelectorAll("[data-live][id]")) {
      const now = page.getElementById(old.id);
      if (!now && old.parentElement.id) old.remove();
      if (!now || now.isEqualNode(old)) continue;
      if (old.contains(document.activeElement) || selected(old)) continue;   // somebody works with it
      const opened = [...old.querySelectorAll("details")].map((each) => each.open);
      const log = old.querySelector(".log"), atEnd = log && log.scrollTop + log.clientHeight > log.scrollHeight - 8;
      const top = log && log.scrollTop;
      old.replaceChildren(...now.childNodes);
      old.querySelectorAll("details").forEach((each, place) => { if (opened[place]) each.open = true; });
      const fresh = old.querySelector(".log");
      if (fresh) fresh.scrollTop = atEnd ? fresh.scrollHeight : top || 0;
      copyButtons(old);
    }
  }

  // What was not there before comes into the element that holds it, if that has an id, before what follows it.
  function appear(now) {
    const place = now.parentElement.id && document.getElementById(now.parentElement.id);
    if (!place) return;
    let next = now.nextElementSibling;
    while (next && !(next.id && document.getElementById(next.id)?.parentElement === place)) next = next.nextElementSibling;
    place.insertBefore(document.importNode(now, true), next && document.getElementById(next.id));
    copyButtons(place);
  }

  function selected(element) {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && element.contains(selection.anchorNode);
  }

  function listen() {
    if (source || document.hidden || !document.querySelector("[data-live][id]")) return;
    source = new EventSource("/api/v1/events");
    source.addEventListener("state", look);
  }

  function rest() {
    if (source) source.close();
    source = null;
  }

  function copyButtons(place) {
    if (!navigator.clipboard) return;   // only over https, or on this machine
    for (const box of place.querySelectorAll(".copy")) {
      if (box.querySelector("button")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "button small";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(box.querySelector("code").textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      box.append(button);
    }
  }

  const address = new URL(location.href);
  if (address.searchParams.has("said")) {   // said once, and not again when the page is loaded again
    address.searchParams.delete("said");
    history.replaceState(null, "", address);
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
  window.addEventListener("pagehide", rest);
  document.querySelectorAll(".log").forEach((log) => { log.scrollTop = log.scrollHeight; });
  copyButtons(document);
  listen();
})();
