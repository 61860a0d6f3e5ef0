// Judges the members of a config.json that its family has not read.
#pragma once

#include <string>

#include "tokamak/models/hf_fields.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {

/// Returns a line that names the members which neither the family nor transformers knows, or
/// nothing. Throws Error if a member asks for maths that the family does not have. REQUIRES: the
/// family has read `c` from `f`.
std::string judge_unread(const HfFields& f, const ModelSpec& c);

}  // namespace tokamak
