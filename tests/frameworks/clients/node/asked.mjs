// What every framework of Node.js is asked; `../asked.py` is the same for Python.
export const URL_ = process.env.INFLIGHT_URL ?? "http://127.0.0.1:8000";
export const MODEL = process.env.INFLIGHT_MODEL ?? "inflight-demo";
export const KEY = "unused";
export const OPENAI = `${URL_}/v1`;
export const PLAIN = "What is machine learning?";
export const TOOL = "What is the weather in Paris?";
export const RESULT = { city: "Paris", temperature: 21, unit: "celsius", condition: "sunny" };
export const FORM = "Describe the weather in Paris as JSON.";
export const LIMIT = 96;
const CASES = ["text", "stream", "tools", "tools streamed", "structured", "structured streamed"];

export function check(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

export function checkText(text) {
  check(typeof text === "string" && text.split(/\s+/).length > 2, `no text: ${JSON.stringify(text)}`);
}

export function checkPieces(pieces) {
  check(pieces.filter((piece) => piece).length > 2, `not in pieces: ${JSON.stringify(pieces)}`);
  checkText(pieces.join(""));
}

export function checkTold(text) {
  check(typeof text === "string" && text.includes("sunny"), `the result is not told: ${JSON.stringify(text)}`);
}

export function checkForm(value) {
  check(typeof value?.city === "string", `no city: ${JSON.stringify(value)}`);
  check(["celsius", "fahrenheit"].includes(value.unit), `no unit: ${JSON.stringify(value)}`);
}

// The function that the model calls, and the calls that came.
export class Calls {
  cities = [];
  getWeather = ({ city }) => {
    this.cities.push(city);
    return RESULT;
  };
  check() {
    check(JSON.stringify(this.cities) === '["Paris"]', `called with ${JSON.stringify(this.cities)}`);
  }
}

export async function run(rows) {
  for (const [row, cases] of Object.entries(rows)) {
    for (const name of CASES) {
      let outcome = { state: "absent" };
      if (cases[name]) {
        try {
          await cases[name]();
          outcome = { state: "yes" };
        } catch (error) {
          outcome = { state: "no", reason: String(error?.cause ?? error) };
        }
      }
      console.log(JSON.stringify({ row, case: name, ...outcome }));
    }
  }
}
