"""The last chapters of the page: what the documents get wrong, how it was measured, and how to measure it again."""

from isotherm.language import Text
from isotherm.record import Erratum, Timed
from isotherm.report.explain import words
from isotherm.report.explain.book import Book
from isotherm.report.markup import Html, both, join, tag


def errata(book: Book) -> Html:
    """Every erratum: the statement, the corrected one, and the claim that shows it; then the remarks."""
    found = [_entry(timed, erratum) for timed, erratum in book.errata()]
    lead = both(words.ERRATA_LEAD if found else words.NO_ERRATA, "p", class_="lead")
    remarks = [_entry(timed, remark) for timed, remark in book.errata("remark")]
    if remarks:
        remarks = [tag("h3", both(words.REMARKS)), both(words.REMARKS_LEAD, "p"), *remarks]
    return join(lead, *found, *remarks)


def _entry(timed: Timed, erratum: Erratum) -> Html:
    where = tag("p", both(words.place(erratum.document, erratum.line)), class_="where")
    shown = tag("a", both(timed.record.title), href=f"#{timed.record.id}")
    remark = erratum.kind == "remark"
    says = tag("div", tag("h4", both(words.WRONG)), tag("p", both(erratum.wrong)), class_=None if remark else "wrong")
    head = words.ADDED if remark else words.RIGHT
    right = tag("div", tag("h4", both(head)), tag("p", both(erratum.right)), class_=None if remark else "right")
    return tag("div", tag("div", where, shown), says, right, class_="remark erratum" if remark else "erratum")


def facts(book: Book) -> Html:
    """On what the claims were measured, and how to repeat that."""
    claims = list(book.claims())
    versions = {name: version for timed in claims for name, version in timed.versions.items()}
    command = "isotherm explain --fresh --out DIR" + (" --size full" if book.scale == "full" else "")
    told = [
        (words.SIZE, both(words.SIZES.get(book.scale, Text(book.scale, book.scale)))),
        (words.DEVICE, tag("span", book.device, translate="no")),
        (words.VERSIONS, tag("span", ", ".join(f"{name} {it}" for name, it in versions.items()), translate="no")),
        (words.AGAIN, tag("code", command, translate="no")),
    ]
    if claims:
        last = max(timed.created for timed in claims).replace("T", " ")[:16]
        told.insert(3, (words.CREATED, tag("span", f"{last} UTC", translate="no")))
    return tag("dl", *(tag("div", tag("dt", both(name)), tag("dd", value)) for name, value in told), class_="facts")


def runs(book: Book) -> Html:
    """Parameters, seed, code and time of each claim, and the claims without a record."""
    names = (words.CLAIM, words.PARAMETERS, words.SEED, words.CODE, words.SECONDS)
    head = tag("tr", *(tag("th", both(name), scope="col") for name in names))
    rows = []
    for timed in book.claims():
        record = timed.record
        given = ", ".join(f"{name} = {value}" for name, value in record.parameters.items())
        rows.append(
            tag(
                "tr",
                tag("th", tag("a", both(record.title), href=f"#{record.id}"), scope="row"),
                tag("td", tag("code", given, translate="no")),
                tag("td", record.seed),
                tag("td", tag("code", timed.code, translate="no")),
                tag("td", f"{timed.seconds:.1f}"),
            )
        )
    table = tag("table", tag("caption", both(words.RUN), class_="unseen"), tag("thead", head), tag("tbody", *rows))
    return join(tag("div", table, class_="scroll runs", tabindex="0"), _without(book))


def _without(book: Book) -> Html | None:
    """Claims that failed or were not run, with the reason."""
    if not book.failed and not book.skipped:
        return None
    lines = [
        tag("li", tag("code", missing.id, translate="no"), " · ", both(state), " · ", both(missing.why))
        for state, group in ((words.FAILED, book.failed), (words.NOT_RUN, book.skipped))
        for missing in group
    ]
    return join(tag("h3", both(words.NO_RECORD)), tag("ul", *lines, class_="method"))
