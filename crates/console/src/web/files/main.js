// The page: what is seen of which machine, and the line that names it.

import { Screen, Terminal } from "./consoles.js";
import { Link, setToken, takeTokenFromAddress } from "./link.js";
import { Machines, onPress } from "./machines.js";

const NOTE = 5000;
const SMALL_PICTURE = 2;
const PICTURE_OF_SCREEN = 1;

const $ = (id) => document.getElementById(id);
const link = new Link({ opened, heard, bytes, lost, refused });
const say = (message) => link.say(message);

// The console that is seen: machine and view. None while all machines are.
let seen = null;
let owner = null;
let graphs = null;
let noteTimer = null;

const screen = new Screen(say, leaveGuest, paste);
const terminal = new Terminal(say, leaveGuest, paste);
const machines = new Machines((name) => see(name, null), order);

function order(what, machine, more = {}) {
  say({ do: "do", what: { order: what, machine, ...more } });
}

function note(text) {
  $("note").textContent = text;
  clearTimeout(noteTimer);
  noteTimer = setTimeout(() => ($("note").textContent = ""), NOTE);
}

// Writes the line that no guest can draw.
function drawLine() {
  const isAway = link.socket === null || (seen !== null && owner === null);
  const machine = seen && machines.machine(seen.machine);
  $("where").textContent = seen ? `${seen.machine} ${seen.view}` : "All machines";
  const who = () => {
    if (link.socket === null) return "no connection; trying again";
    if (!seen) return "";
    const state = machine ? machine.state : "not known";
    if (owner === null) return `${state}, no console yet`;
    if (seen.view === "log") return state;
    if (owner.input) return `${state}, you type`;
    return owner.owner ? `${state}, another client types (process ${owner.owner})` : `${state}, you look on`;
  };
  $("who").textContent = who();
  $("line").className = isAway ? "away" : owner?.input ? "input" : "";
  $("own").textContent = owner?.input ? "Look on" : "Type here";
  $("own").disabled = !seen || seen.view === "log" || owner === null;
  document.title = seen ? `${seen.machine} ${seen.view} - ring3` : "ring3";
}

function show(id) {
  for (const other of ["login", "machines", "console"]) {
    $(other).hidden = other !== id;
  }
}

function opened() {
  show(seen ? "console" : "machines");
  say({ do: "visible", is: !document.hidden });
  if (seen) {
    attach();
  }
  drawLine();
}

function lost() {
  owner = null;
  drawLine();
}

function refused() {
  show("login");
  $("token").focus();
  $("where").textContent = "ring3";
  $("who").textContent = "this page needs the token";
}

function heard(message) {
  switch (message.is) {
    case "machines":
      machines.take(message.machines);
      drawViews();
      graphs?.draw();
      break;
    case "seen":
      if (seen && message.machine === seen.machine && message.view === seen.view) {
        owner = { input: message.input, owner: message.owner };
      }
      break;
    case "rows":
      terminal.draw(message);
      return;
    case "gone":
      owner = null;
      note(message.text);
      break;
    case "note":
      note(message.text);
      return;
    case "media":
      drawMedia(message);
      return;
  }
  drawLine();
}

function bytes(view) {
  const kind = view.getUint8(0);
  if (kind === PICTURE_OF_SCREEN && seen?.view === "screen") {
    screen.draw(view);
  } else if (kind === SMALL_PICTURE) {
    machines.picture(view);
  }
}

// Shows a console of a machine, by default its first serial line.
function see(machine, view) {
  const views = machines.machine(machine)?.views ?? ["screen", "log"];
  const usual = views.find((name) => name.startsWith("serial")) ?? views[0];
  screen.release();
  seen = { machine, view: view ?? usual };
  owner = null;
  $("drives").hidden = true;
  show("console");
  screen.canvas.hidden = seen.view !== "screen";
  terminal.element.hidden = seen.view === "screen";
  $("keys").hidden = seen.view !== "screen";
  $("copy").hidden = seen.view === "screen";
  screen.clear();
  terminal.clear();
  guest().setAttribute("aria-label", `${machine} ${seen.view}. Ctrl+Alt+G leaves it.`);
  graphs = machines.graphsOf(machine);
  graphs.draw();
  $("uses").replaceChildren(graphs.element);
  attach();
  drawViews();
  drawLine();
  guest().focus();
}

function attach() {
  terminal.told = terminal.room();
  say({ do: "see", machine: seen.machine, view: seen.view, ...terminal.told });
}

function guest() {
  return seen.view === "screen" ? screen.canvas : terminal.element;
}

function drawViews() {
  const views = (seen && machines.machine(seen.machine)?.views) ?? [];
  const present = [...$("views").children].map((button) => button.textContent);
  if (present.join() !== views.join()) {
    const buttons = views.map((view) => {
      const button = document.createElement("button");
      button.textContent = view;
      button.addEventListener("click", () => see(seen.machine, view));
      return button;
    });
    $("views").replaceChildren(...buttons);
  }
  for (const button of $("views").children) {
    button.setAttribute("aria-pressed", String(button.textContent === seen?.view));
  }
}

// Takes the keyboard back from the guest.
function leaveGuest() {
  $("back").focus();
}

async function paste() {
  let text;
  try {
    text = await navigator.clipboard.readText();
  } catch {
    note("this browser does not give its clipboard away; put the text into the field");
    return $("typed").focus();
  }
  say({ do: "text", text });
}

function drawMedia({ machine, drives, images }) {
  if (machine !== seen?.machine) {
    return;
  }
  const options = (select, texts) => select.replaceChildren(...texts.map(([value, text]) => new Option(text, value)));
  options($("drive"), drives.map(({ device, file }) => [device, `${device}: ${file ?? "empty"}`]));
  options($("image"), (images ?? []).map((image) => [image, image]));
  $("drives").hidden = drives.length === 0;
  if (drives.length === 0) {
    note("it has no drives for discs or diskettes");
  } else if (images === null) {
    note("to insert images, start the page with --media DIRECTORY");
  }
}

$("back").addEventListener("click", () => {
  const { machine } = seen;
  screen.release();
  seen = null;
  owner = null;
  graphs = null;
  say({ do: "leave" });
  show("machines");
  drawLine();
  machines.known.get(machine)?.open.focus();
});
$("own").addEventListener("click", () => {
  say({ do: "own", wish: owner?.input ? "watch" : "take" });
  guest().focus();
});
$("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(terminal.text());
  note("copied");
});
$("lock").addEventListener("click", () => {
  screen.canvas.focus();
  screen.canvas.requestPointerLock();
});
$("text").addEventListener("submit", (event) => {
  event.preventDefault();
  say({ do: "text", text: $("typed").value });
});
$("look").addEventListener("click", () => order("media", seen.machine));
$("media").addEventListener("submit", (event) => {
  event.preventDefault();
  order("insert", seen.machine, { device: $("drive").value, image: $("image").value });
});
$("eject").addEventListener("click", () => order("eject", seen.machine, { device: $("drive").value }));
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken($("token").value);
  $("token").value = "";
  link.open();
});
for (const button of document.querySelectorAll("[data-order]")) {
  onPress(button, () => order(button.dataset.order, seen.machine));
}
for (const button of document.querySelectorAll("[data-keys]")) {
  button.addEventListener("click", () => {
    screen.press(button.dataset.keys.split(" "));
    guest().focus();
  });
}
document.addEventListener("visibilitychange", () => say({ do: "visible", is: !document.hidden }));

// A browser that is told the address again loads nothing.
window.addEventListener("hashchange", () => {
  if (takeTokenFromAddress() && link.socket === null) {
    link.open();
  }
});
takeTokenFromAddress();
link.open();
