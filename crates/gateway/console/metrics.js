// Readings of the gateway's Prometheus page, and what happened between two of them. Pure; owns no names of
// metrics.

const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** A page as `{ at, samples }`: milliseconds, and for each name a list of `{ labels, value }`. */
export function parse(text, at) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!found) continue;
    const [, name, given = "", value] = found;
    const labels = Object.fromEntries([...given.matchAll(LABEL)].map(([, label, text]) => [label, unescaped(text)]));
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels, value: Number(value) });
  }
  return { at, samples };
}

const unescaped = (text) => text.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));

/** The sum of the samples of a name; of those that `fits` accepts. */
export function total(page, name, fits = () => true) {
  const found = (page.samples.get(name) ?? []).filter(({ labels }) => fits(labels));
  return found.reduce((sum, { value }) => sum + value, 0);
}

/** The sums by one label, as a `Map`; of the samples that `fits` accepts. */
export function by(page, name, label, fits = () => true) {
  const found = new Map();
  for (const { labels, value } of page.samples.get(name) ?? []) {
    if (label in labels && fits(labels)) found.set(labels[label], (found.get(labels[label]) ?? 0) + value);
  }
  return found;
}

/** Events a second of a counter; one that began anew counts from 0. */
export function rate(before, now, name, fits) {
  const seconds = (now.at - before.at) / 1000;
  const count = total(now, name, fits);
  const grown = count - total(before, name, fits);
  return seconds > 0 ? (grown >= 0 ? grown : count) / seconds : 0;
}

/**
 * The value below which `share` of what a histogram counted in between lies, as Prometheus interpolates it; null
 * where it counted nothing.
 */
export function quantile(before, now, name, share) {
  const old = by(before, `${name}_bucket`, "le");
  const buckets = [...by(now, `${name}_bucket`, "le")]
    .map(([le, count]) => [le === "+Inf" ? Infinity : Number(le), Math.max(count - (old.get(le) ?? 0), 0)])
    .sort(([one], [other]) => one - other);
  const all = buckets.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let [lower, below] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= share * all) {
      if (bound === Infinity) return lower;
      return lower + ((bound - lower) * (share * all - below)) / Math.max(count - below, 1e-12);
    }
    [lower, below] = [bound, count];
  }
  return lower;
}
