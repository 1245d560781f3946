// The English words, for scripts that are tested without a page.
import { readFileSync } from "node:fs";
import { speak } from "../../specdemo/ui/static/view/words.js";

export const catalogue = (tag) => JSON.parse(readFileSync(new URL(`../../specdemo/words/${tag}.json`, import.meta.url), "utf8"));
speak("en", catalogue("en"));
