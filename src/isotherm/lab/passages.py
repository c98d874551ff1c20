"""Six short texts of different kinds, our own, for claims about a trained model: what one text shows may be that text's.

English only, because the model was trained on English.
"""

PASSAGES = (
    "The ferry left at six, before the fog had lifted from the harbour. Two brothers stood at the rail with their "
    "collars up, one counting the gulls, the other counting the money they had borrowed for the crossing. Neither "
    "spoke. When the lighthouse slid past on the left, the younger one took a folded letter from his coat, read the "
    "first line, and put it back. Their grandmother had written it in pencil, and half of the words were gone. All "
    "that remained was an address, a date in spring, and the name of a street where nobody had lived since the flood. "
    "He wondered whether the house would still be standing, and who would open the door.",
    "To repair the pump, first close the valve under the sink and open the tap until no more water comes. Loosen the "
    "four screws on the cover, beginning with the one nearest the handle, and keep them in a cup so that none is lost. "
    "Lift the cover straight up. If the rubber ring is cracked, replace it with one of the same width; a ring that is "
    "too wide will leak, and one that is too narrow will tear. Clean the groove with a dry cloth before you put the "
    "new ring in. Then close the cover, tighten the screws one after another, a little at a time, and open the valve "
    "again slowly.",
    "Light from a distant galaxy reaches the telescope with its colours shifted towards the red, because space has "
    "grown while the light was on its way. The more distant the galaxy, the larger the shift. In 1929 this was read "
    "from the spectra of two dozen galaxies; today it is measured for millions. The numbers do not agree as well as "
    "one would like. Methods that look at nearby stars give a faster growth than methods that look at the oldest light "
    "we can see, and the difference is larger than the errors that either side admits. Perhaps one of the rulers is "
    "wrong. Perhaps both are right, and something is missing.",
    '"You are late," said the clerk without looking up. "The office closed at four." "It is ten minutes to four," said '
    'Anna, "and the clock in the hall agrees with me." "The clock in the hall is wrong." "Then why do you keep it?" '
    'The clerk put down his pen. "Because it has always been there. What do you want?" "A permit for one boat, two '
    'chairs and a piano." "A piano? On a boat?" "It is a small piano," said Anna. He searched three drawers, found a '
    'yellow form, and pushed it across the desk. "Fill this in. Write clearly. If it sinks, we were never told about '
    'the piano."',
    "Dear Mr. Okafor, thank you for your order of 14 March. We are sorry to say that the blue tiles are no longer "
    "made; the factory in Porto that supplied them closed last year. We can offer three others of the same size: grey "
    "at 2.40 each, white at 2.10, and a dark green at 3.75, which many customers prefer to the blue. Samples of all "
    "three are in the parcel. If none of them pleases you, we will return the 86.50 that you have paid, and the "
    "samples are yours to keep. Please let us know before the end of April, since prices will rise in May. With kind "
    "regards, Elena Marsh, Marsh and Daughters, tiles and stone.",
    "Every autumn the cranes pass over the valley in long uneven lines, calling to one another so that none falls "
    "behind. The farmers know the week, though not the day. Some birds rest on the wet meadows by the river; most fly "
    "on until dark. A young crane learns the way from its parents in its first year, and is said to remember each bend "
    "of it afterwards. When the old route was blocked by a row of new towers, the first flock turned aside, circled "
    "twice, and went round by the north. The flocks that came later had not seen this happen. They went round by the "
    "north as well, and no one could explain how they knew.",
)
