// Words explained where they stand: a tap, Enter or a resting mouse opens what a word means, beside it.
const MEANING_REST = 250;
const MEANING_EDGE = 12;

function placeBeside(meaning, term) {
  const word = term.getBoundingClientRect();
  const { width, height } = meaning.getBoundingClientRect();
  const below = word.bottom + 8 + height < innerHeight;
  meaning.style.left = `${Math.min(Math.max(word.left, MEANING_EDGE), Math.max(innerWidth - width - MEANING_EDGE, MEANING_EDGE))}px`;
  meaning.style.top = `${below ? word.bottom + 8 : Math.max(word.top - 8 - height, MEANING_EDGE)}px`;
}

export function wireTerm(term) {
  const meaning = document.getElementById(term.getAttribute("popovertarget"));
  if (!meaning) return;
  let resting = null;
  meaning.addEventListener("toggle", (event) => { if (event.newState === "open" && meaning.opener === term) placeBeside(meaning, term); });
  const open = () => { meaning.opener = term; };
  term.addEventListener("click", open, { capture: true });
  term.addEventListener("pointerenter", (event) => {
    if (event.pointerType !== "mouse") return;
    resting = setTimeout(() => { if (!meaning.matches(":popover-open")) { open(); meaning.showPopover(); placeBeside(meaning, term); meaning.rested = true; } }, MEANING_REST);
  });
  term.addEventListener("pointerleave", () => { clearTimeout(resting); if (meaning.rested && meaning.matches(":popover-open")) meaning.hidePopover(); meaning.rested = false; });
}
