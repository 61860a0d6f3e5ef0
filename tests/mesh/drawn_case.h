// Meshes and options drawn at random.
#pragma once

#include "tests/fixtures/draw.h"
#include "tests/fixtures/mesh_run.h"

namespace tokamak {

/// Draws all axes and options of a run of `model` that may be drawn together.
MeshCase draw_case(Draw& draw, const ModelSpec& model);

}  // namespace tokamak
