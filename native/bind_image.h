// bind_image.h: launches over images, as methods of Program.
#pragma once
#include "bind_hal.h"

void bind_image_launches(rb::bind::Class& c);
