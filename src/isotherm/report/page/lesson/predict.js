// «Predict, then see»: a question whose answer appears once one has committed to a guess.
import { bilingual, element } from "./elements.js";

export function wirePrediction(form, words) {
  const see = form.querySelector(".see");
  const judged = element("p", { class: "judged", role: "status" });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => {
    const right = event.target.value === form.dataset.answer;
    form.classList.toggle("right", right);
    form.classList.toggle("wrong", !right);
    judged.replaceChildren(...bilingual(words[right ? "predict_right" : "predict_wrong"]));
    see.before(judged);
    see.hidden = false;
  });
}
