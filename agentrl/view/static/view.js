// Helps only: without it every page can be read, and links lead to what it would have brought.
"use strict";

const POLL_MS = 2000;

// ---- copy

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
});

// ---- parts that are loaded when they are asked for

async function part(address) {
  const response = await fetch(address, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  return [...(page.querySelector("main") || page.body).childNodes];
}

async function open(details) {
  const place = details.querySelector("[data-kept]");
  if (!details.open || place.dataset.isLoaded) return;
  place.dataset.isLoaded = "yes";
  try {
    place.replaceChildren(...(await part(details.dataset.part)));
  } catch {
    delete place.dataset.isLoaded;
  }
}

document.addEventListener("toggle", (event) => {
  if (event.target.matches("details[data-part]")) open(event.target);
}, true);

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-part]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const place = link.closest(".pages");
  const nodes = await part(link.dataset.part);
  place.replaceWith(...nodes);
  const next = nodes.find((node) => node.querySelector?.("a[data-part]"));
  next?.querySelector("a[data-part]").focus({ preventScroll: true });
});

const all = document.getElementById("all-tokens");
if (all) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) entry.target.open = true;
  });
  all.hidden = false;
  all.addEventListener("click", () => {
    for (const details of document.querySelectorAll("details.tokens")) seen.observe(details);
  });
}

// ---- pages of what is still being written: the new page's nodes are put where they differ, so that what has the
// focus, what is unfolded and where one has scrolled to stay

function update(old, fresh) {
  if (old.isEqualNode(fresh) || (old.nodeType === Node.ELEMENT_NODE && "kept" in old.dataset)) return;
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id || old.nodeType !== Node.ELEMENT_NODE) {
    old.replaceWith(document.importNode(fresh, true));
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  updateChildren(old, fresh);
}

function updateChildren(old, fresh) {
  let here = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const found = wanted.id && [...old.children].find((child) => child.id === wanted.id);
    if (found && found !== here) old.insertBefore(found, here);
    if (!found && (!here || (wanted.id && here.id !== wanted.id && here.id))) {
      old.insertBefore(document.importNode(wanted, true), here);
      continue;
    }
    const target = found || here;
    here = target.nextSibling;
    update(target, wanted);
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

async function refresh() {
  const response = await fetch(location.href);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (!response.ok) return gone(page.querySelector("h1")?.textContent);
  update(document.getElementById("main"), page.getElementById("main"));
  document.title = page.title;
  const { changed, mark } = page.body.dataset;
  if (!changed) delete document.body.dataset.changed;
  else document.body.dataset.mark = mark;
  tell(changed ? "live" : "");
}

function tell(text, isGone = false) {
  const place = document.getElementById("live");
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("gone", isGone);
}

function gone(why) {
  delete document.body.dataset.changed;
  tell(why || "this is gone", true);
}

async function poll() {
  const { changed, mark } = document.body.dataset;
  if (!changed) return;
  try {
    if (!document.hidden) {
      const response = await fetch(changed);
      if (response.status === 404) return gone("deleted meanwhile: go back to the runs");
      if (response.status === 401) return gone("the viewer was started anew: open its new address");
      if (response.ok && (await response.json()).mark !== mark) await refresh();
    }
  } catch {
    tell("the viewer doesn't answer: is it still running?", true);
  }
  setTimeout(poll, POLL_MS);
}

if (document.body.dataset.changed) setTimeout(poll, POLL_MS);
