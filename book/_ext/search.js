// How the search ranks what it finds, and which other words it tries. Sphinx puts this into the search page
// (`html_search_scorer`); hetfl_pages.py fills in how often each chapter uses its words.

const COUNTS = /* counts */ {};

// Words that mean the same here, or nearly: each is tried for each.
const SYNONYMS = [
  ["non-iid", "non-i.i.d.", "noniid", "heterogeneity", "label skew", "dirichlet"],
  ["personalisation", "personalised"],
  ["bci", "brain-computer interface", "eeg"],
  ["ot", "optimal transport", "wasserstein"],
  ["dp", "differential privacy"],
  ["fl", "federated learning"],
  ["vfl", "vertical federated learning", "vertical"],
  ["fedcma", "fed-cma"],
  ["kl", "kullback-leibler"],
  ["mmd", "maximum mean discrepancy"],
  ["poe", "product of experts"],
  ["encoder", "embedding"],
  ["prototype", "class mean", "anchor"],
  ["communication cost", "bytes"],
  ["gpu", "cuda"],
  ["colab", "binder"],
  ["reproducibility", "ledger"],
  ["homework", "assignment"],
];

// Pages that name everything and explain little.
const LAST = ["api", "bibliography", "status"];
const LATER = ["index", "ledger", "notation", "tasks", "how-to-run"];

// Books say it in British English: personalization, normalize, color, ...
const spelled = (query) =>
  query
    .replace(/(\w{3})iz(e|es|ed|er|ing|ation|ations)\b/g, "$1is$2")
    .replace(/\b(col|behavi|neighb)or/g, "$1our");

const alternatives = (query) => {
  const same = spelled(query.toLowerCase().trim());
  const found = SYNONYMS.filter((group) => group.includes(same)).flat();
  return [...new Set([query, same, ...found])];
};

// Names of the library have dots or underlines in them: who types those wants the reference.
const asksForCode = (query) => /\w[._]\w/.test(query);

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 22,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

const standing = (doc, words) => {
  if (doc.includes("/") || LAST.includes(doc)) return doc.startsWith("assignments") ? 10 : 0;
  const uses = words.map((word) => (COUNTS[doc] || {})[word] || 0);
  return (LATER.includes(doc) ? 24 : 30) + 4 * Math.log2(1 + (uses.length ? Math.min(...uses) : 0));
};

const found = Search._performSearch;

Search.query = (query) => {
  const best = new Map();
  let asked;
  alternatives(query).reverse().forEach((words) => {
    const parsed = Search._parseQuery(words);
    asked = parsed; // what was typed comes last
    found(...parsed).forEach(([doc, title, anchor, text, score, file]) => {
      score += asksForCode(query) ? 0 : standing(doc, [...parsed[1]]);
      if (words !== query) score -= words === spelled(query) ? 1 : 20;
      const key = [doc, title, anchor].join();
      if (!best.has(key) || best.get(key)[4] < score) best.set(key, [doc, title, anchor, text, score, file]);
    });
  });
  const results = [...best.values()].sort(_orderResultsByScoreThenName);
  _displayNextItem(results, results.length, asked[1], asked[3]);
};
