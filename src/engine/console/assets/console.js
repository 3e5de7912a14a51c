"use strict";

const EVERY_MS = 1000;
const main = () => document.querySelector("main");
const tell = (where, text) => { const at = document.querySelector(where); at.hidden = !text; at.textContent = text || ""; };
const fault = (text) => tell("#fault", text);
const said = (text) => tell("#said", text);

// Makes `now` like `next`, element by element; those with an id are found again wherever they are.
function patch(now, next) {
  if (now === document.activeElement && now.matches("input, select")) return;
  for (const { name } of [...now.attributes]) if (!next.hasAttribute(name)) now.removeAttribute(name);
  for (const { name, value } of next.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  const known = new Map([...now.children].filter((one) => one.id).map((one) => [one.id, one]));
  let at = now.firstChild;
  for (const wanted of [...next.childNodes]) {
    let found = wanted.id ? known.get(wanted.id) : at && !at.id && at.nodeName === wanted.nodeName ? at : null;
    if (!found) {
      now.insertBefore(document.importNode(wanted, true), at);
      continue;
    }
    if (found === at) at = at.nextSibling; else now.insertBefore(found, at);
    if (found.nodeType === Node.ELEMENT_NODE) patch(found, wanted);
    else if (found.nodeValue !== wanted.nodeValue) found.nodeValue = wanted.nodeValue;
  }
  while (at) { const after = at.nextSibling; at.remove(); at = after; }
}

async function look() {
  try {
    const answer = await fetch(location.href);
    if (answer.redirected) { location.assign(answer.url); return; }
    const text = await answer.text();
    if (!answer.ok) { fault(text); return; }
    patch(main(), new DOMParser().parseFromString(text, "text/html").querySelector("main"));
    fault("");
  } catch (error) { fault("The console does not answer: what is shown is old."); }
}

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const told = await answer.json();
  said(answer.ok ? told.said : "");
  return answer.ok ? "" : told.reason;
}

const live = "live" in document.body.dataset;
let due = null;
async function follow() {
  if (!document.hidden) await look();
  if (live) due = setTimeout(follow, EVERY_MS);
}

function confirmed(text) {
  const dialog = document.querySelector("#confirm");
  dialog.querySelector("p").textContent = text;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}

async function act(button) {
  const fields = JSON.parse(button.dataset.fields);
  if (button.dataset.chosen) {
    fields[button.dataset.chosen] = [...document.querySelectorAll(".chosen:checked")].map((one) => one.value);
    if (!fields[button.dataset.chosen].length) { fault("Choose some first."); return; }
  }
  if (!await confirmed(button.dataset.text)) return;
  const why = await post(`/acts/${button.dataset.act}`, fields);
  if (!why) { await look(); return; }
  clearTimeout(due);
  fault(why);
  if (live) due = setTimeout(follow, 5 * EVERY_MS);
}

function dark() {
  const root = document.documentElement;
  const is = root.dataset.mode || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.mode = is === "dark" ? "light" : "dark";
  localStorage.setItem("mode", root.dataset.mode);
}

const help = () => document.querySelector("#help").showModal();
const places = { o: "/", t: "/topics", n: "/namespaces", l: "/letters", x: "/transactions", b: "/brokers" };
let before = "";
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (before === "g" && places[event.key]) location.assign(places[event.key]);
  else if (event.key === "?") help();
  else if (event.key === "d") dark();
  else if (event.key === "/" && document.querySelector("#search")) { event.preventDefault(); document.querySelector("#search").focus(); }
  before = event.key;
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.matches(".act")) act(button);
  else if (button.id === "dark") dark();
  else if (button.id === "keys") help();
  else if (button.id === "logout") post("/logout", {}).then(() => location.assign("/login"));
});
document.addEventListener("change", (event) => {
  if (event.target.id !== "every") return;
  for (const one of document.querySelectorAll(".chosen")) one.checked = event.target.checked;
});
document.addEventListener("submit", async (event) => {
  if (event.target.id !== "login") return;
  event.preventDefault();
  const why = await post("/login", { token: document.querySelector("#token").value });
  if (why) fault(why); else location.assign("/");
});
if (localStorage.getItem("mode")) document.documentElement.dataset.mode = localStorage.getItem("mode");
if (live) due = setTimeout(follow, EVERY_MS);
