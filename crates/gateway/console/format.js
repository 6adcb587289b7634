// Numbers and times as people read them. Pure.

/** Three digits or so; a dash where there is nothing. */
export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

/** Milliseconds as a time. */
export function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** Where a request came in, without what all such routes share. */
export function route({ route }) {
  if (route.startsWith("Model")) return `KServe ${route}`;
  return route.replace("/v2/models/{model}/", "KServe ").replace(/^\/v1\//, "");
}
