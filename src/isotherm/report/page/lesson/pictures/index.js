// Every picture of the lesson but the model's, by the name that the story calls it.
import { dotsPicture, playScores } from "./dots.js";
import { findingPicture } from "./finding.js";
import { gradientsPicture } from "./gradients.js";
import { jacobianPicture, playJacobian } from "./jacobian.js";
import { lengthsPicture } from "./lengths.js";
import { playPhase } from "./phase.js";
import { powersPicture } from "./powers.js";
import { playRules } from "./rules_compared.js";
import { playWeights, weightsPicture } from "./weights.js";

export const PICTURES = {
  finding: findingPicture,
  dots: dotsPicture,
  weights: weightsPicture,
  jacobian: jacobianPicture,
  gradients: gradientsPicture,
  powers: powersPicture,
  lengths: lengthsPicture,
  play_scores: playScores,
  play_weights: playWeights,
  play_jacobian: playJacobian,
  play_phase: playPhase,
  play_rules: playRules,
};
